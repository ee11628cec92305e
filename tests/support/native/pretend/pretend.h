/* What the pretend libraries share: variables, failures on request, and how work is queued.
 *
 * Variables are read at each call, so a test may change them while it runs.
 *   PRETEND_GPU_NAME=NAME       the device's name
 *   PRETEND_TRACE=1             prints each call
 *   PRETEND_FAIL=NAME=STATUS,.. these functions return a status. `NAME=STATUS@N` fails from the N-th call of this
 *                               process on, `@N-M` up to the M-th; calls count from when the variable was set.
 *                               `kernel=STATUS` is a kernel that fails when it runs: see queue.c
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static inline const char *pretend_gpu_name(void)
{
    const char *name = getenv("PRETEND_GPU_NAME");
    return name ? name : "NVIDIA H100 80GB HBM3";
}

/* whether CUDA_VISIBLE_DEVICES shows the device: "0", a UUID; empty and "-1" hide it */
static inline int pretend_is_seen(void)
{
    const char *seen = getenv("CUDA_VISIBLE_DEVICES");
    return !seen || seen[0] == '0' || seen[0] == '1' || !strncmp(seen, "GPU-", 4);
}

/* a variable's number, or the usual one */
static inline double pretend_number(const char *variable, double usual)
{
    const char *text = getenv(variable);
    return text && *text ? strtod(text, NULL) : usual;
}

/* whether VALUE, VALUE@N or VALUE@N-M holds at a call; the text may go on behind a comma */
static inline int pretend_holds(const char *value, int call)
{
    size_t length = strcspn(value, ",");
    const char *from = memchr(value, '@', length);
    const char *to = from ? memchr(from, '-', length - (from - value)) : NULL;
    return !from || (call >= atoi(from + 1) && (!to || call <= atoi(to + 1)));
}

/* The status that a call shall return, of those that a variable lists; 0 if it may do its work. */
static inline int pretend_status_in(const char *variable, const char *name)
{
    static char counted[1024];
    static struct { const char *name; int calls; } known[64];
    static int names;
    const char *list = getenv(variable);
    if (!list) return counted[0] = 0;
    if (strncmp(list, counted, sizeof counted - 1)) {
        snprintf(counted, sizeof counted, "%s", list);
        names = 0;
    }
    size_t length = strlen(name);
    for (const char *at = list; (at = strstr(at, name)); at += length) {
        if ((at != list && at[-1] != ',') || at[length] != '=') continue;
        int i = 0;
        while (i < names && strcmp(known[i].name, name)) i++;
        if (i == 64) return 0;
        if (i == names) known[names++].name = name, known[i].calls = 0;
        int call = ++known[i].calls;
        return pretend_holds(at + length + 1, call) ? atoi(at + length + 1) : 0;
    }
    return 0;
}

/* Every call begins with this. */
static inline int pretend_status(const char *name)
{
    if (getenv("PRETEND_TRACE")) fprintf(stderr, "[pretend] %s\n", name);
    return pretend_status_in("PRETEND_FAIL", name);
}

/* queue.c: Queue work of so many ms, PRETEND_KERNEL_US if negative; `data` is copied. `work` runs at once, or,
 * where the stream is captured, at each launch of the graph. Returns a cudaError_t. */
int pretend_run(const char *name, void *stream, double ms, void (*work)(const void *), const void *data,
                size_t bytes);

/* The same for a library that may stand without the runtime, on the host's memory alone. */
static inline int pretend_queue(const char *name, void *stream, void (*work)(const void *), const void *data, size_t bytes)
{
    static int (*run)(const char *, void *, double, void (*)(const void *), const void *, size_t);
    if (!run) run = dlsym(RTLD_DEFAULT, "pretend_run");
    if (run) return run(name, stream, -1, work, data, bytes);
    if (work) work(data);
    return 0;
}

/* cupti.c: what the device did, for the profiler */
enum pretend_kind { PRETEND_KERNEL, PRETEND_COPY, PRETEND_SET };
struct pretend_record {
    enum pretend_kind kind;
    const char *name;          /* of a kernel */
    long long wait_ns, ns;     /* until it begins; that it takes */
    unsigned stream, call;     /* which call queued it: what pretend_api returned */
    unsigned graph, node;      /* 0 where it is of no graph */
    size_t bytes;
    int value;                 /* of a copy: enum cudaMemcpyKind; of memory that is set: the byte */
};
