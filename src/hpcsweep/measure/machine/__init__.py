"""The machine that measures: device, memory, telemetry, framework settings."""
