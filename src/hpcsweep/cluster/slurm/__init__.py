"""Runs Slurm's programs and parses their output; no other package runs them.

`call` runs one program in bounded time, and says which cluster it is, `sbatch` submits, `jobs` asks
for the states of jobs, cancels them and reads their ids. `site`, which is not imported here since
`status` does not need it, asks for nodes, partitions, QOS and accounts.

Questions return their answer or a `CouldNotAsk`, because `hpcsweep status` must work when the
cluster is down. Orders (submit, cancel) raise a `SchedulerError`. Only text with named fields is
read: Slurm's JSON changes between releases. Standard library only.
"""

from hpcsweep.cluster.slurm.call import (
    Client,
    CouldNotAsk,
    amount,
    available,
    config,
    duration,
    environment,
    moment,
    number,
    this_client,
    user_name,
)
from hpcsweep.cluster.slurm.jobs import (
    STATES,
    JobId,
    JobState,
    State,
    Survey,
    attempts,
    cancel,
    hostnames,
    in_vain,
    is_held,
    numbers,
    parse_id,
    queue,
    state_of,
    survey,
    task_list,
)
from hpcsweep.cluster.slurm.sbatch import (
    LimitReached,
    Place,
    Rejected,
    Unanswered,
    refusal,
    submit,
    would_accept,
)
