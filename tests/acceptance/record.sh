#!/usr/bin/env bash
# Records `recorded/results` with the hpcsweep of an earlier commit:
#
#     bash record.sh PYTHON_OF_THAT_COMMIT ITS_tests/support/lab.py
#
# As root, beside Debian's Slurm: the sweeps of by_*.yaml run on a Slurm of this machine, those of
# waiting*.yaml stay in its queue. The desk lies in a folder whose name has the length of the folders
# that tests/on_slurm/test_queued_by_an_earlier_version.py makes, since submitit pickles paths. The
# machine was busy when this ran, so that commit's `Control.row` was changed to raise no flag.
set -euo pipefail
python=$1 lab=$2
here=$(cd "$(dirname "$0")" && pwd)
desk=/tmp/hpcsweep-recorded-000000000000
export PATH=$PATH:/usr/sbin:/sbin

rm -rf "$desk"
cp -r "$here/recorded/desk" "$desk"
printf '#!/bin/sh\nexec %s "$@"\n' "$python" >"$desk/python"
chmod +x "$desk/python"
mkdir "$desk/cluster_profiles"
for launcher in sbatch submitit; do
  cat >"$desk/cluster_profiles/by_$launcher.yaml" <<EOF
launcher: $launcher
gpu: v100
partition: gpu
constraint: gpu2v100
gres: 'gpu:1'
python: $desk/python
max_points_per_chunk: 4
time: 30
EOF
done
cd "$desk"

# Paths of this machine are no part of what is recorded: those of Python, and of torch's compiler.
without_paths() {
  prefix=$("$python" -c 'import sys; print(sys.base_prefix)')
  find "$1" \( -name '*.log' -o -name '*.env.json' \) -exec \
    sed -i -e "s|$prefix|/usr|g" -e 's|/opt/rh/[^ ,]*/c++|c++|g' {} +
}

hpcsweep() { "$desk/python" -c 'from hpcsweep.cli import run; run()' "$@" || echo "ended with $?"; }

# every workload and every status on this machine; one sweep is measured twice
for sweep in statuses injected trained own_program; do
  hpcsweep submit "$sweep.yaml" --cluster local
done
hpcsweep retry statuses --invalid
hpcsweep submit trained.yaml --cluster local --again
hpcsweep submit skipped.yaml --cluster local --skip-dominated
hpcsweep collect statuses trained skipped injected own_program
without_paths results
hpcsweep bundle statuses --out "$here/recorded/statuses.zip"

# a run that was killed, on a host that nobody can ask any more
cp /proc/sys/kernel/random/uuid /tmp/boot_id
unshare --uts --mount bash -c '
  hostname far
  mount --bind /tmp/boot_id /proc/sys/kernel/random/boot_id
  "$0" -c "from hpcsweep.cli import run; run()" submit half_done.yaml --cluster local &
  submit=$!
  until [ "$(cat results/half_done/shards/*/*.overall.csv 2>/dev/null | wc -l)" -ge 5 ]; do
    sleep 0.1
  done
  supervisor=$(pgrep -P $submit | head -1)
  worker=$(pgrep -P "$supervisor" || true)
  kill -9 $submit "$supervisor" $worker
' "$desk/python"

# on a Slurm: two sweeps that ran, and two that it has queued
"$python" "$lab" start /tmp/lab-recorded
export SLURM_CONF=/tmp/lab-recorded/slurm.conf
for launcher in sbatch submitit; do
  hpcsweep submit "by_$launcher.yaml" --cluster "by_$launcher"
done
until [ -z "$(squeue --noheader)" ]; do sleep 1; done
hpcsweep status by_sbatch
scontrol update nodename=v100n1 state=drain reason=recording
hpcsweep submit waiting.yaml --cluster by_sbatch
hpcsweep submit waiting_submitit.yaml --cluster by_submitit
without_paths results
cp -r results "$here/recorded/results"
"$python" "$lab" stop /tmp/lab-recorded
find "$here/recorded/results" -name .lock -delete
find "$here/recorded/results" -type l -delete # of submitit's scripts, by their whole path
