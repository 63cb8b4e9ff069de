#!/bin/bash
#SBATCH --job-name=tiny
#SBATCH --array=0-2%2
#SBATCH --output='/shared/ada/100%% my own/runs/tiny/slurm/%A_%a.out'
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:USR1@300
#SBATCH --partition=gpu
#SBATCH --account=lab
#SBATCH --time=4:00:00
#SBATCH --gres=gpu:1
#SBATCH --mem=16G
#SBATCH --exclusive
#SBATCH --comment='two words # not one'

# A cell is one training, and one task of this array. Written by oelm run --on slurm.
cells=(
    baseline/tune/optimizer.lr=0.0001/seed-100
    baseline/seed-0
    oelm-freeze/seed-0
)
cell=${cells[SLURM_ARRAY_TASK_ID]}

cd -- '/shared/ada/100% my own' || exit 2
command -v module >/dev/null || . /etc/profile
module load python/3.11 cuda/12 || exit 2
. /shared/envs/oelm/bin/activate || exit 2

# Slurm tells this shell; the cell then writes its checkpoint and leaves.
trap 'kill -USR1 $! 2>/dev/null' USR1
trap 'kill -TERM $! 2>/dev/null' TERM
oelm run runs/tiny/study.json --cell "$cell" --out runs &
worker=$!
while kill -0 "$worker" 2>/dev/null; do
    wait "$worker" # until it ends, or a signal comes
done
wait "$worker"
ended=$?

# Stopped by USR1, before the time limit: back into the queue, to go on from the checkpoint.
if [ "$ended" = 138 ]; then
    scontrol requeue "${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}"
fi
exit "$ended"
