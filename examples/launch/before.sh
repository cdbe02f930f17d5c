module load cuda/13.0 nccl
. venv/bin/activate || exit 2
