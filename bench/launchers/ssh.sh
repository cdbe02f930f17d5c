#!/bin/sh
# Tries `plimsoll launch ssh` through a real sshd on this machine, which listens at 127.0.0.1 for one key: a run that ends well, one whose
# rank is killed and that is started again, one that is stopped; with HOSTS = 2 also two hosts, which are both this machine. Needs sshd and
# ssh; everything is written into FOLDER, and the daemon ends with the script.
#
#   sh bench/launchers/ssh.sh FOLDER [BINARY] [HOSTS]
set -u
[ $# -ge 1 ] || { echo "usage: sh bench/launchers/ssh.sh FOLDER [BINARY] [HOSTS]" >&2; exit 2; }
mkdir -p "$1"
folder="$(cd "$1" && pwd)"
plimsoll="${2:-target/debug/plimsoll}"
hosts="${3:-1}"
. bench/launchers/common.sh

mkdir -p "$folder/bin" && cp "$plimsoll" "$folder/bin/plimsoll"
rm -f "$folder"/key* "$folder"/server*
ssh-keygen -q -t ed25519 -N '' -f "$folder/key" && ssh-keygen -q -t ed25519 -N '' -f "$folder/server"
cp "$folder/key.pub" "$folder/known" && chmod 600 "$folder/known"
cat >"$folder/sshd_config" <<CONF
ListenAddress 127.0.0.1:17022
HostKey $folder/server
AuthorizedKeysFile $folder/known
StrictModes no
PidFile none
CONF
"$(command -v sshd || echo /usr/sbin/sshd)" -D -e -f "$folder/sshd_config" >"$folder/sshd.log" 2>&1 &
daemon=$!
trap 'kill "$daemon"' EXIT
sleep 1
PLIMSOLL_SSH="ssh -q -F none -p 17022 -i $folder/key -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null"
export PLIMSOLL_SSH
here="$(id -un)@127.0.0.1"

# Writes the files. $1: name and run directory; then options of `launch ssh`.
job() {
    name="$1"
    shift
    rm -rf "$folder/launch-$name"
    (cd "$folder/project" && "$folder/bin/plimsoll" -q launch ssh first.toml --name "$name" --out "$folder/launch-$name" \
        --program "$folder/bin/plimsoll" --host-memory 4GiB --host "$here" "$@") || exit 2
}

project alone && (cd "$folder/project" && "$folder/bin/plimsoll" train first.toml >/dev/null 2>&1)
wanted="$(weights alone)"

project two && job two --hosts 1 --ranks-per-host 2 && sh "$folder/launch-two/start.sh" >"$folder/two.log" 2>&1
fact "2 ranks on one host leave the weights of one process ($wanted)" [ "$(weights two)" = "$wanted" ]
fact "its lines carry the host's name" grep -q "^$here: step 24/24" "$folder/two.log"

project four
kill_rank 'PLIMSOLL_LAUNCH=2/4:.*' four &
killer=$!
job four --hosts 1 --ranks-per-host 4 --restarts 1 && sh "$folder/launch-four/start.sh" >"$folder/four.log" 2>&1
wait "$killer"
fact "a killed rank of 4 is named: $(grep -m 1 -o 'rank 2 .* was killed: SIGKILL[a-z ]*' "$folder/four.log")" \
    grep -q 'rank 2 .* was killed' "$folder/four.log"
fact "it is started again and goes on from a checkpoint" grep -q 'resumes after step' "$folder/four.log"
fact "a run that was killed leaves the same weights" [ "$(weights four)" = "$wanted" ]

for signal in TERM KILL; do
    project "stopped$signal" && job stopped --hosts 1 --ranks-per-host 2
    setsid sh "$folder/launch-stopped/start.sh" >"$folder/stopped.log" 2>&1 &
    script=$!
    for _ in $(seq 300); do
        grep -q '^[^ ]*: step ' "$folder/stopped.log" && break
        sleep 0.1
    done
    kill -s "$signal" "$script"
    wait "$script" 2>/dev/null
    code=$?
    for _ in $(seq 200); do
        [ -z "$(trainer_of 'PLIMSOLL_LAUNCH=0/2:.*')" ] && break
        sleep 0.1
    done
    fact "SIG$signal of the script ends the run (exit code $code)" [ -z "$(trainer_of 'PLIMSOLL_LAUNCH=0/2:.*')" ]
    fact "before its end, with a checkpoint" \
        sh -c "cd '$folder/project/stopped$signal' && [ -e checkpoints/latest ] && [ ! -e summary.json ]"
done

if [ "$hosts" -gt 1 ]; then
    project hosts && job hosts --hosts 2 --ranks-per-host 2 --host "$(id -un)@localhost" && sh "$folder/launch-hosts/start.sh" >"$folder/hosts.log" 2>&1
    fact "2 hosts with 2 ranks each leave the same weights" [ "$(weights hosts)" = "$wanted" ]
fi
exit "$((failures > 0))"
