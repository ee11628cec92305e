"""Times passes and layers: clocks, the measuring loop, statistics, timers of layers."""
