"""Everything that is said to Slurm, and everything that Slurm says: nobody else runs its programs.

========== ==================================================================================
`call`      runs one program in bounded time; a question without an answer is a value
`ids`       job ids in every form that squeue, sacct and sbatch print
`states`    every job state and what it means here; reasons for which waiting is in vain
`refusals`  what sbatch says when it refuses, as typed errors with the next step
`sbatch`    submits a script, or asks whether it would be accepted
`jobs`      the states of jobs by squeue and sacct; cancel
`site`      the cluster itself: configuration, nodes, partitions, QOS and accounts
`cluster`   all of that, asked once
`text`      fields, times and numbers
========== ==================================================================================

Questions return their answer or a `CouldNotAsk`, since a cluster that is down must not end
`hpcsweep status`; orders (submit, cancel) raise a `SchedulerError`. Only text with named
fields is read: the JSON of Slurm changes between its releases. Standard library only.

A folder, although its parts do not replace each other: nine files of one subject would hide the
stages of the program in the list of modules.
"""

from hpcsweep.slurm.call import CouldNotAsk, Why, available, environment
from hpcsweep.slurm.cluster import Cluster, describe
from hpcsweep.slurm.ids import JobId, parse_id, task_list
from hpcsweep.slurm.jobs import (
    JobState,
    Survey,
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
    Node,
    Partition,
    Qos,
    associations,
    config,
    nodes,
    partitions,
    qos,
)
from hpcsweep.slurm.states import STATES, Meaning, State, in_vain, state_of
from hpcsweep.slurm.text import amount, duration, number

__all__ = [
    "STATES",
    "Admission",
    "Association",
    "Cluster",
    "CouldNotAsk",
    "Expectation",
    "Gres",
    "JobId",
    "JobState",
    "LimitReached",
    "Meaning",
    "Node",
    "Partition",
    "Qos",
    "Rejected",
    "State",
    "Survey",
    "Unanswered",
    "Why",
    "amount",
    "associations",
    "attempts",
    "available",
    "cancel",
    "config",
    "describe",
    "duration",
    "environment",
    "hostnames",
    "in_vain",
    "maybe_accepted",
    "nodes",
    "number",
    "parse_id",
    "partitions",
    "qos",
    "queue",
    "refusal",
    "state_of",
    "submit",
    "survey",
    "task_list",
    "working_folders",
    "would_accept",
]
