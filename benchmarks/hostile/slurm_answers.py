"""What Slurm's programs print, as seeds: several answers for each program, a usual one first."""

from __future__ import annotations

from typing import Final

_S: Final = b"\x1f"


def _rows(*rows: str) -> bytes:
    return b"".join(_S.join(cell.encode() for cell in row.split("~")) + b"\n" for row in rows)


_NOW: Final = "2026-01-01T10:00:00"
_SQUEUE: Final = _rows(
    f"4242_0~PENDING~Priority~~{_NOW}~N/A~N/A",
    f"4242_1~RUNNING~None~l40sn1~{_NOW}~2026-01-01T10:05:00~2026-01-01T11:05:00",
    f"4242_2~COMPLETING~None~l40sn[1-2]~{_NOW}~2026-01-01T10:05:00~2026-01-01T11:05:00",
    f"7~PENDING~(Dependency)~~{_NOW}~N/A~N/A",
)
_FOLDERS: Final = _rows("4242~/home/a/results/queued/submissions/x", "7~/tmp")
_SACCT: Final = _rows(
    f"4242_0~NODE_FAIL~None~l40sn1~{_NOW}~2026-01-01T10:05:00~2026-01-01T10:06:00~0:0",
    f"4242_0~PENDING~None~None assigned~{_NOW}~Unknown~Unknown~0:0",
    f"4242_1~CANCELLED by 1000~None~l40sn1~{_NOW}~{_NOW}~2026-01-01T10:09:00~0:15",
    f"4242_[2-3%2]~PENDING~None~None assigned~{_NOW}~Unknown~Unknown~0:0",
    f"4242_3~FAILED~None~l40sn2~{_NOW}~{_NOW}~2026-01-01T10:09:00~1:0",
)
_SINFO: Final = _rows(
    "l40sn1~gpu~l40,ib,avx512~gpu:l40:4(S:0-1)~64~512000~mixed~none",
    "l40sn2~gpu~l40,ib,avx512~gpu:l40:4~64~512000~idle~~none",
    "l40sn2~long~l40,ib~gpu:l40:4~64~512000~drained*~Not responding",
    "v100n1~gpu~v100~gpu:v100:2,shard:8,tmp:2G~32~192000~allocated~none",
    "cn1~cpu~(null)~(null)~128~256000~idle~none",
)
_SCONTROL: Final = b"""\
Slurmctld(primary) at head is UP
Configuration data as of 2026-01-01T10:00:00
AccountingStorageEnforce = associations,limits,qos,safe
ClusterName             = physics
MaxArraySize            = 1001
MaxJobCount             = 10000
KillWait                = 30 sec
PreemptMode             = OFF
SLURM_VERSION           = 23.11.4
PartitionName=gpu AllowGroups=ALL AllowAccounts=phys,chem AllowQos=ALL DenyAccounts=x Default=YES \
DefaultTime=01:00:00 MaxNodes=UNLIMITED MaxTime=2-00:00:00 MaxCPUsPerNode=UNLIMITED \
Nodes=l40sn[1-2] State=UP TotalCPUs=128 TotalNodes=2 MaxMemPerNode=480000 PreemptMode=OFF \
RootOnly=NO ReqResv=NO
PartitionName=long AllowGroups=staff AllowAccounts=ALL DenyQos=low Default=NO DefaultTime=NONE \
MaxNodes=1 MaxTime=UNLIMITED State=DRAIN TotalCPUs=64 TotalNodes=1 MaxMemPerNode=UNLIMITED
PartitionName=cpu AllowGroups=ALL AllowAccounts=ALL AllowQos=normal Default=NO MaxTime=00:02:00 \
State=UP TotalCPUs=128 TotalNodes=1 MaxMemPerNode=UNLIMITED ReqResv=YES
"""
_SACCTMGR: Final = b"""\
phys||normal,long|normal|2-00:00:00
chem|gpu|normal||
normal|1-00:00:00|DenyOnLimit
long|7-00:00:00|
root|phys
phys|
me|phys
"""
_LIMIT: Final = b"""\
sbatch: error: AssocMaxSubmitJobLimit
sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit, \
user's size and/or time limits)
"""
_TEST_ONLY: Final = b"""\
sbatch: Job 4243 to start at 2026-01-01T10:00:00 using 1 processors on nodes l40sn1 in partition gpu
"""
ANSWERS: Final[dict[str, list[bytes]]] = {
    "squeue": [_SQUEUE, _FOLDERS],
    "sacct": [_SACCT],
    "sinfo": [_SINFO],
    "scontrol": [_SCONTROL],
    "sacctmgr": [_SACCTMGR],
    "sbatch": [
        b"4242\n",
        b"4242;physics\n",
        b"Welcome to the cluster\n4242\n",
        b"sbatch: error: Batch job submission failed: Invalid partition name specified\n",
        _LIMIT,
        _TEST_ONLY,
    ],
}
