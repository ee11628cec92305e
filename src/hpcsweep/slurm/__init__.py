"""Talks to Slurm; nothing else in hpcsweep runs Slurm's programs.

========== ==================================================================================
`call`      runs one program in bounded time
`ids`       reads job ids in every form that squeue, sacct and sbatch print
`states`    lists every job state and its meaning, and the reasons for which a job never starts
`refusals`  turns what sbatch prints when it refuses into typed errors with the next step
`sbatch`    submits a script, or asks whether sbatch would accept it
`jobs`      asks squeue and sacct for the states of jobs, and cancels jobs
`site`      asks for configuration, nodes, partitions, QOS and accounts
`cluster`   asks for all of that at once
`text`      reads fields, times and numbers
========== ==================================================================================

Questions return their answer or a `CouldNotAsk`, because `hpcsweep status` must work when the
cluster is down. Orders (submit, cancel) raise a `SchedulerError`. Only text with named fields is
read: Slurm's JSON changes between releases. Standard library only.
"""

from hpcsweep.slurm.call import CouldNotAsk, Why, available, environment
from hpcsweep.slurm.cluster import Cluster, describe
from hpcsweep.slurm.ids import JobId, parse_id, task_list
from hpcsweep.slurm.jobs import (
    JobState,
    Survey,
    alive_by_controller,
    attempts,
    cancel,
    hostnames,
    queue,
    survey,
    working_folders,
)
from hpcsweep.slurm.refusals import LimitReached, Rejected, Unanswered, maybe_accepted, refusal
from hpcsweep.slurm.sbatch import Expectation, submit, would_accept
from hpcsweep.slurm.site import (
    Admission,
    Association,
    Gres,
    Here,
    Node,
    Partition,
    Qos,
    associations,
    config,
    here,
    nodes,
    partitions,
    qos,
)
from hpcsweep.slurm.states import STATES, Meaning, State, in_vain, state_of
from hpcsweep.slurm.text import amount, duration, number
