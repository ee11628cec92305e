#!/bin/bash

# Parameters
#SBATCH --array=0-1%2
#SBATCH --chdir=/tmp/hpcsweep-recorded-000000000000/results/waiting_submitit/submissions/20261128-120543-by_submitit
#SBATCH --constraint=gpu2v100
#SBATCH --gres=gpu:1
#SBATCH --job-name=hpcsweep-waiting_submitit
#SBATCH --nodes=1
#SBATCH --open-mode=append
#SBATCH --output=/tmp/hpcsweep-recorded-000000000000/results/waiting_submitit/submissions/20261128-120543-by_submitit/logs/submitit/%A_%a_0_log.out
#SBATCH --partition=gpu
#SBATCH --requeue
#SBATCH --signal=USR2@120
#SBATCH --time=30
#SBATCH --wckey=submitit

# setup
export HPCSWEEP_DEADLINE=$(( $(date +%s) + 1800 ))
fail() { echo "hpcsweep: $1" >&2; exit 5; }
# Scripts of the site and the lines below do not expect an inherited `set -eu`.
set +eu
# Number the devices as nvidia-smi and Slurm do. The log says which one this is.
export CUDA_DEVICE_ORDER=PCI_BUS_ID
if command -v nvidia-smi >/dev/null; then timeout 20 nvidia-smi -L; fi

# command
export SUBMITIT_EXECUTOR=slurm
srun --unbuffered --output /tmp/hpcsweep-recorded-000000000000/results/waiting_submitit/submissions/20261128-120543-by_submitit/logs/submitit/%A_%a_%t_log.out --nodes=1 --ntasks=1 /tmp/hpcsweep-recorded-000000000000/python -u -m submitit.core._submit /tmp/hpcsweep-recorded-000000000000/results/waiting_submitit/submissions/20261128-120543-by_submitit/logs/submitit
