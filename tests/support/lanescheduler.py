"""Hands out modules of tests by the lanes of `lanes`; only pytest-xdist needs it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from lanes import GPU, LANES, rank

if TYPE_CHECKING:
    from collections.abc import Sequence

    from xdist.workermanage import WorkerController


class Scheduler(LoadScopeScheduling):
    """Hands out modules by rank to the processes that have them; a lane of Slurm's tests as one."""

    _of_gpu_lane: frozenset[str] = frozenset()  # tests that only the process with a GPU can run

    def add_node_collection(self, node: WorkerController, collection: Sequence[str]) -> None:
        """Note what a process can run: not the same for all."""
        self.registered_collections[node] = list(collection)
        if node.workerinput["share"] == GPU:
            self._of_gpu_lane = frozenset(collection)

    def schedule(self) -> None:
        """Give every process its first modules."""
        if self.collection is None:
            collections = self.registered_collections.values()
            every = dict.fromkeys(nodeid for ids in collections for nodeid in ids)
            self.collection = ordered = sorted(every, key=rank)
            for nodeid in ordered:
                self.workqueue.setdefault(self._split_scope(nodeid), {})[nodeid] = False
            session: Any = self.config.pluginmanager.get_plugin("session")
            session.testscollected = len(ordered)
            for scope, unit in self.workqueue.items():
                if not any(set(unit) <= set(ids) for ids in collections):
                    raise pytest.UsageError(f"{scope}: its tests have other ids in each process")
        for node in self.nodes * 2:  # a second module, so that none waits for the next one
            self._reschedule(node)

    def _reschedule(self, node: WorkerController) -> None:
        if node.shutting_down or self._pending_of(self.assigned_work[node]) > 2:
            return
        own = set(self.registered_collections[node])
        scopes = (scope for scope, unit in self.workqueue.items() if own.issuperset(unit))
        if scope := next(scopes, None):
            self.workqueue.move_to_end(scope, last=False)
            self._assign_work_unit(node)
        else:
            node.shutdown()

    def _split_scope(self, nodeid: str) -> str:
        module = nodeid.partition("::")[0]
        if nodeid in self._of_gpu_lane:
            return f"GPU {module}"
        if not module.startswith("tests/on_slurm/"):
            return module
        name = module.rpartition("/test_")[2].removesuffix(".py")
        lane = next((n for n, names in enumerate(LANES, 1) if name in names), len(LANES))
        return f"Slurm {lane}"
