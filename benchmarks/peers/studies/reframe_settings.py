"""Two jobs at a time on this machine, and a log of all rows."""

site_configuration = {
    "systems": [
        {
            "name": "generic",
            "hostnames": [".*"],
            "partitions": [
                {
                    "name": "default",
                    "scheduler": "local",
                    "launcher": "local",
                    "environs": ["builtin"],
                    "max_jobs": 2,
                }
            ],
        }
    ],
    "environments": [{"name": "builtin", "cc": "", "cxx": "", "ftn": ""}],
    "logging": [
        {
            "handlers": [{"type": "stream", "level": "warning"}],
            "handlers_perflog": [
                {
                    "type": "filelog",
                    "prefix": "%(check_system)s",
                    "level": "info",
                    "format": "%(check_number)s,%(check_perfvalues)s",
                    "format_perfvars": "%(check_perf_value)s,",
                }
            ],
        }
    ],
}
