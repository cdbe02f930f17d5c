# What the scripts of this folder share: the run that they start, and checks that count. Read by `.`, with `folder` and `plimsoll` set.

failures=0
run_file="$folder/project/first.toml"

# A short run on processors, with as many micro-batches as ranks, so that each has work. $1: its name, by which its directory goes; one of an earlier time is removed.
project() {
    mkdir -p "$folder/project" && rm -rf "${folder:?}/project/$1"
    sed -e 's/^steps  *=.*/steps = 24/' -e 's/^every = 20/every = 8/' -e '/^\[train\]/a cut_multiple = 4' \
        -e 's/^device = .*/device = "cpu"/' -e "s|^dir .*|dir = \"$1\"|" runs/first.toml >"$run_file"
    printf '\n[checkpoint]\nevery = 4\n' >>"$run_file"
}

weights() { # run directory
    cat "$folder/project/$1"/checkpoints/latest/*.safetensors 2>/dev/null | sha256sum | cut -c 1-16
}

# Returns the pid of the trainer of a rank: the child of the supervisor, which is the first process of the binary with this variable.
trainer_of() { # variable=value
    for process in /proc/[0-9]*; do
        supervisor="${process#/proc/}"
        parent="$(sed -n 's/^PPid:[[:space:]]*//p' "$process/status" 2>/dev/null)" || continue
        [ "$(cat "$process/comm" 2>/dev/null)" = plimsoll ] || continue
        grep -qz "^$1\$" "$process/environ" 2>/dev/null || continue
        grep -qz "^$1\$" "/proc/$parent/environ" 2>/dev/null && [ "$(cat "/proc/$parent/comm")" = plimsoll ] && continue
        for child in $(cat "$process/task/$supervisor/children" 2>/dev/null); do
            [ "$(cat "/proc/$child/comm" 2>/dev/null)" = plimsoll ] && echo "$child" && return
        done
    done
}

# Kills the trainer of a rank once the run in $2 has saved a checkpoint.
kill_rank() { # variable=value run-directory
    for _ in $(seq 600); do
        [ -e "$folder/project/$2/checkpoints/latest" ] && break
        sleep 0.1
    done
    pid="$(trainer_of "$1")"
    [ -n "$pid" ] && kill -KILL "$pid" && echo "killed the trainer of $1"
}

fact() { # sentence command...
    sentence="$1"
    shift
    if "$@" >/dev/null 2>&1; then
        echo "holds    $sentence"
    else
        echo "FAILS    $sentence"
        failures=$((failures + 1))
    fi
}
