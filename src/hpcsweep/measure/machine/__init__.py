"""Checks, describes and watches the machine: device, memory, telemetry, framework settings."""
