#!/bin/sh
# Tries `plimsoll launch slurm` with a real Slurm on this machine: a job that ends well, what processors and cards its ranks get, one whose
# rank is killed and that comes back, and, where this slurmd can be several nodes and the binary trains on several hosts, two nodes. Needs root and the programs slurmctld,
# slurmd and munged; everything is written into FOLDER, and its daemons end with the script.
#
#   sh bench/launchers/slurm.sh FOLDER [BINARY] [NODES]
set -u
[ $# -ge 1 ] || { echo "usage: sh bench/launchers/slurm.sh FOLDER [BINARY] [NODES]" >&2; exit 2; }
mkdir -p "$1"
folder="$(cd "$1" && pwd)"
plimsoll="${2:-target/debug/plimsoll}"
nodes="${3:-1}"
. bench/launchers/common.sh

mkdir -p "$folder/bin" "$folder/state" "$folder/log" && cp "$plimsoll" "$folder/bin/plimsoll"
PATH="$folder/bin:$PATH:/usr/sbin"
SLURM_CONF="$folder/slurm.conf"
export PATH SLURM_CONF
here="$(hostname -s)"
names=n0
[ "$nodes" -gt 1 ] && names="n[0-$((nodes - 1))]"
ports=17000
[ "$nodes" -gt 1 ] && ports="[17000-$((17000 + nodes - 1))]"
# A requeued job waits until its old credential is over, so that is short here.
cat >"$SLURM_CONF" <<CONF
ClusterName=here
SlurmctldHost=$here(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/munge.socket,cred_expire=3
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool.%n
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.%n.pid
SlurmctldLogFile=$folder/log/slurmctld
SlurmdLogFile=$folder/log/slurmd.%n
SlurmctldPort=16817
ReturnToService=2
KillWait=15
GresTypes=gpu
NodeName=$names NodeHostname=$here NodeAddr=127.0.0.1 Port=$ports CPUs=4 RealMemory=8192 Gres=gpu:2
PartitionName=all Nodes=ALL Default=YES
CONF
# Two devices that are called cards: which of them Slurm lets a task see is in its variables.
printf 'Name=gpu File=/dev/null\nName=gpu File=/dev/zero\n' >"$folder/gres.conf"
head -c 1024 /dev/urandom >"$folder/munge.key" && chmod 600 "$folder/munge.key"
daemons=
daemon() {
    "$@" >>"$folder/log/daemons" 2>&1 &
    daemons="$daemons $!"
}
# `unshare` lets SIGTERM pass and waits for its slurmd, which SIGKILL takes along.
trap 'kill $daemons 2>/dev/null; sleep 1; kill -KILL $daemons 2>/dev/null; wait' EXIT
daemon munged --foreground --force --key-file "$folder/munge.key" --socket "$folder/munge.socket" \
    --pid-file "$folder/munge.pid" --log-file "$folder/log/munge" --seed-file "$folder/munge.seed"
sleep 1
daemon slurmctld -D
sleep 1
for node in $(seq 0 $((nodes - 1))); do
    mkdir -p "$folder/spool.n$node"
    # Nodes that neither see each other's processes nor share memory.
    apart=
    [ "$nodes" -gt 1 ] && apart="unshare --pid --fork --mount-proc --kill-child"
    daemon $apart slurmd -D -N "n$node"
done
for _ in $(seq 30); do
    [ "$(sinfo -h -t idle -o %D 2>/dev/null)" = "$nodes" ] && break
    sleep 1
done
echo "slurm    $(slurmctld -V), nodes: $(sinfo -h -o '%D %T' 2>&1 | tr '\n' ' ')"
[ "$(sinfo -h -t idle -o %D 2>/dev/null)" = "$nodes" ] || { tail -n 5 "$folder"/log/*; exit 1; }

# Writes, submits and waits for the end. $1: name and run directory; then options of `launch slurm`.
job() {
    name="$1"
    shift
    rm -rf "$folder/launch-$name"
    (cd "$folder/project" && plimsoll launch slurm first.toml --name "$name" --out "$folder/launch-$name" \
        --host-memory 4GiB --submit "$@") 2>&1 | sed 's/^/         /'
    for _ in $(seq 300); do
        state="$(scontrol show job "$name" -o 2>/dev/null | head -n 1)"
        number="$(squeue -h -n "$name" -o %i)"
        [ -z "$number" ] && break
        sleep 1
    done
    state="$(scontrol show job -o | grep "JobName=$name " | tail -n 1)"
}

project alone && (cd "$folder/project" && plimsoll train first.toml >/dev/null 2>&1)
wanted="$(weights alone)"

project two && job two --hosts 1 --ranks-per-host 2 --cpus-per-rank 2
fact "2 ranks of one job leave the weights of one process ($wanted)" [ "$(weights two)" = "$wanted" ]
fact "Slurm had the memory of the plan: $(echo "$state" | grep -o 'MinMemoryNode=[^ ]*')" \
    sh -c "echo '$state' | grep -q 'MinMemoryNode=$(sed -n 's/^#SBATCH --mem=//p' "$folder/launch-two/two.sbatch")'"

# A program in place of plimsoll that shows what Slurm gives a rank.
cat >"$folder/bin/shows" <<'SHOWS'
#!/bin/sh
echo "rank $SLURM_PROCID: ${SLURM_CPUS_PER_TASK:-1} processors, cards ${CUDA_VISIBLE_DEVICES:-none}, $NOTE $OWN"
SHOWS
chmod +x "$folder/bin/shows"
printf 'OWN=before\nexport OWN\n' >"$folder/before.sh"
cards() { # name, further words: of 2 ranks each has 2 processors, sees both cards, and has what was added
    own="$1"
    shift
    project "$own" && job "$own" --hosts 1 --ranks-per-host 2 --cpus-per-rank 2 --card h100 --set run.device=cuda \
        --program "$folder/bin/shows" --env NOTE=env --before "$folder/before.sh" --restarts 0 "$@"
    [ "$(grep -c ': 2 processors, cards 0,1, env before$' "$folder"/project/"$own"-*.log)" = 2 ]
}
fact "each of 2 ranks has 2 processors and sees both cards of its host" cards cards
fact "so it is with cards that --sbatch asks for" cards gres --sbatch gres=gpu:2

project four
kill_rank SLURM_PROCID=2 four &
killer=$!
job four --hosts 1 --ranks-per-host 4 --cpus-per-rank 1 --restarts 1
wait "$killer"
log="$(ls "$folder"/project/four-*.log)"
fact "a killed rank of 4 is named: $(grep -m 1 -o 'rank 2 .* was killed: SIGKILL[a-z ]*' "$log")" grep -q 'rank 2 .* was killed' "$log"
fact "the job comes back ($(echo "$state" | grep -o 'Restarts=[0-9]*')) and goes on from a checkpoint" grep -q 'resumes after step' "$log"
fact "a run that was killed leaves the same weights" [ "$(weights four)" = "$wanted" ]

if [ "$nodes" -gt 1 ]; then
    project hosts
    kill_rank SLURM_PROCID=3 hosts &
    killer=$!
    job hosts --hosts 2 --ranks-per-host 2 --cpus-per-rank 1 --restarts 1
    wait "$killer"
    log="$(ls "$folder"/project/hosts-*.log)"
    fact "a killed rank of 2 nodes is named: $(grep -m 1 -o 'rank 3 .* was killed: SIGKILL[a-z ]*' "$log")" grep -q 'rank 3 .* was killed' "$log"
    fact "the job comes back ($(echo "$state" | grep -o 'Restarts=[0-9]*')) and goes on from a checkpoint" grep -q 'resumes after step' "$log"
    fact "2 nodes with 2 ranks each leave the same weights" [ "$(weights hosts)" = "$wanted" ]
fi

# A minute until the signal, and Slurm looks once in half a minute.
project long && sed -i 's/^steps = .*/steps = 20000/' "$run_file"
rm -rf "$folder/launch-long"
(cd "$folder/project" && plimsoll -q launch slurm first.toml --name long --out "$folder/launch-long" --cpus-per-rank 1 \
    --host-memory 4GiB --hosts 1 --ranks-per-host 2 --time 0:06:00 --submit >/dev/null)
for _ in $(seq 240); do
    log="$(ls "$folder"/project/long-*.log 2>/dev/null)"
    [ -n "$log" ] && grep -q 'resumes after step' "$log" && break
    sleep 1
done
fact "a job whose time is nearly over saves, comes back and goes on: $(grep -m 1 'resumes after' "$log")" \
    grep -q 'restart 1 of 3' "$log"
scancel --name long
for _ in $(seq 60); do
    [ -z "$(squeue -h -n long)" ] && break
    sleep 1
done
fact "a job that scancel ends does not come back" \
    sh -c "[ -z \"\$(squeue -h -n long)\" ] && scontrol show job -o | grep 'JobName=long ' | grep -q 'JobState=CANCELLED'"
exit "$((failures > 0))"
