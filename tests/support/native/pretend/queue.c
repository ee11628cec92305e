/* The second part of the pretend CUDA runtime: streams, events and graphs, in one queue with a time line. The third
 * part, launches.c, has the copies and kernels.
 *
 * Kernels of torch compute nothing: what they should write keeps what lay there. Copies, memory that is set, and what
 * other libraries queue by pretend_run are done for real, at once, or at each launch of the graph that captured them.
 *
 * Time on the device is arithmetic, in ns; nothing is timed. All streams take turns. A kernel takes PRETEND_KERNEL_US
 * (4), an event PRETEND_EVENT_US (0.5), a copy 1 us and 1 us for 2 MB, torch.cuda._sleep its cycles at PRETEND_CLOCK
 * MHz (1980). So the time between two events is the sum of what lies between them, however slow the machine is.
 * The device's clock jumps ahead to the host's where the host can tell that the device was idle: when it has waited
 * for the device, and at torch.cuda._sleep, which a clock queues before what it times.
 * The host waits, really, until the device's time has come; and where PRETEND_QUEUE (1024) pieces of work are queued.
 *
 * PRETEND_HOST_US=N makes the host's clock arithmetic, too, and nothing sleeps: a piece of work takes the host N us to
 * queue, pretend_host_works(ms) is other work of its, pretend_host_ms() reads the clock. The device is then idle
 * whenever it has caught up with the host.
 *
 * PRETEND_FAIL=kernel=700@5: the fifth kernel fails when it runs. The next call that waits says so, and all calls
 * from then on.
 */

/* ---- two clocks, in ns ---- */

static pthread_mutex_t queue_lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static long long device_at; /* when the device will be done with what is queued */
static long long host;      /* the host's clock where it is arithmetic, else 0 */
static int is_idle = 1;     /* the host has waited for the device and queued nothing since */

enum { MOST_QUEUED = 1 << 16 };
static long long ends[MOST_QUEUED]; /* of the pieces in the queue, a ring */
static unsigned oldest, queued;

static long long machine_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}
static long long host_now(void)
{
    int is_arithmetic = getenv("PRETEND_HOST_US") != NULL;
    if (is_arithmetic != (host != 0)) { /* a test has switched: begin again, idle */
        device_at = machine_now();
        host = is_arithmetic ? device_at : 0;
        queued = 0;
        is_idle = 1;
    }
    return host ? host : machine_now();
}
static void wait_until(long long moment)
{
    long long left;
    while ((left = moment - host_now()) > 0) {
        struct timespec t = {left / 1000000000, left % 1000000000};
        if (host) host = moment;
        else nanosleep(&t, NULL);
    }
    if (moment >= device_at) is_idle = 1;
}
static void catch_up(void)
{
    if (host_now() > device_at) device_at = host_now();
}
/* Begin a piece of work: it has room in the queue, and the device is on time. */
static void enter(void)
{
    unsigned most = (unsigned)pretend_number("PRETEND_QUEUE", 1024);
    host_now();
    if (host) host += (long long)(1e3 * pretend_number("PRETEND_HOST_US", 0));
    while (queued && (ends[oldest] <= host_now() || queued >= most || queued == MOST_QUEUED)) {
        if (ends[oldest] > host_now()) wait_until(ends[oldest]);
        oldest = (oldest + 1) % MOST_QUEUED;
        queued--;
    }
    if (host || is_idle) catch_up();
    is_idle = 0;
}
static void leave(void)
{
    ends[(oldest + queued++) % MOST_QUEUED] = device_at;
}
double pretend_host_ms(void) { return host_now() / 1e6; }
void pretend_host_works(double ms)
{
    host_now();
    if (host) host += (long long)(1e6 * ms);
}

/* ---- what a pretend CUPTI is told, where one is loaded ---- */

static unsigned tell_call(const char *call)
{
    static unsigned (*told)(const char *);
    if (!told) told = dlsym(RTLD_DEFAULT, "pretend_api");
    return told ? told(call) : 0;
}
static void tell_exit(const char *call)
{
    static void (*told)(const char *);
    if (!told) told = dlsym(RTLD_DEFAULT, "pretend_api_exit");
    if (told) told(call);
}
static void tell_work(const struct pretend_record *record)
{
    static void (*told)(const struct pretend_record *);
    if (!told) told = dlsym(RTLD_DEFAULT, "pretend_activity");
    if (told) told(record);
}

/* ---- streams, events, and graphs, which hold pieces of work in their order ---- */

struct event { long long at; int is_recorded, users; struct CUgraph_st *graph; struct stream *stream; long work; };
struct piece {
    struct pretend_record record;
    void (*work)(const void *);
    void *data;
    struct event *event; /* to be recorded, instead */
    int is_spin;
};
struct CUgraph_st { int users, id, is_invalid; size_t count, room; struct piece *pieces; };
struct stream {
    struct CUgraph_st *graph; /* that it is captured into */
    int priority, is_origin;
    unsigned id;
    long work, joined; /* pieces captured; how many of them another stream waits for */
    struct stream *next;
};
static struct stream default_stream = {.id = 7};
static struct stream *streams = &default_stream;
static struct event *last_event; /* recorded, and nothing queued since */
static int captures;             /* that go on */
static __thread int capture_mode; /* enum cudaStreamCaptureMode; 2 is relaxed */

static struct stream *at(void *s) { return (size_t)s < 3 ? &default_stream : s; }

static void let_event_go(struct event *e)
{
    if (--e->users) return;
    if (last_event == e) last_event = NULL;
    free(e);
}
static void let_graph_go(struct CUgraph_st *g)
{
    if (--g->users) return;
    for (size_t i = 0; i < g->count; i++) {
        free(g->pieces[i].data);
        if (g->pieces[i].event) let_event_go(g->pieces[i].event);
    }
    free(g->pieces);
    free(g);
}
static E capture(struct stream *s, struct piece piece, size_t bytes)
{
    struct CUgraph_st *g = s->graph;
    if (g->is_invalid) return last = cudaErrorStreamCaptureInvalidated;
    if (bytes) piece.data = memcpy(malloc(bytes), piece.data, bytes);
    if (piece.event) piece.event->users++;
    if (g->count == g->room) {
        g->room = g->room ? 2 * g->room : 64;
        g->pieces = realloc(g->pieces, g->room * sizeof piece);
    }
    piece.record.graph = g->id;
    piece.record.node = g->count + 1;
    g->pieces[g->count++] = piece;
    s->work++;
    return 0;
}
/* Do a piece of work, and take its time. */
static void perform(const struct piece *piece, unsigned call)
{
    struct pretend_record record = piece->record;
    if (piece->is_spin && !host) {
        catch_up();
        if (last_event) last_event->at = device_at;
    }
    long long wait = device_at - host_now();
    record.wait_ns = wait > 0 ? wait : 0;
    record.call = call;
    device_at += record.ns;
    last_event = piece->event;
    if (piece->event) {
        piece->event->at = device_at;
        piece->event->is_recorded = 1;
        return;
    }
    if (record.kind == PRETEND_KERNEL && !pending) pending = pretend_status_in("PRETEND_FAIL", "kernel");
    tell_work(&record);
    if (piece->work && !pending) piece->work(piece->data);
}
/* Queue a piece of work, or keep it in the graph that is captured. */
static E queue(const char *call, void *s, struct piece piece, size_t bytes)
{
    E status = 0;
    piece.record.stream = at(s)->id;
    pthread_mutex_lock(&queue_lock);
    if (at(s)->graph) {
        status = capture(at(s), piece, bytes);
    } else {
        enter();
        perform(&piece, piece.event ? 0 : tell_call(call));
        leave();
    }
    pthread_mutex_unlock(&queue_lock);
    if (!piece.event) tell_exit(call);
    return status;
}
int pretend_run(const char *name, void *s, double ms, void (*work)(const void *), const void *data, size_t bytes)
{
    if (broken) return broken;
    if (ms < 0) ms = pretend_number("PRETEND_KERNEL_US", 4) / 1e3;
    struct pretend_record record = {.kind = PRETEND_KERNEL, .name = name, .ns = (long long)(1e6 * ms + 0.5)};
    return queue("cudaLaunchKernel", s, (struct piece){record, work, (void *)data}, bytes);
}

/* ---- calls that wait; none may while a stream is captured ---- */

static E wait_for(long long moment)
{
    if (captures && capture_mode != 2) {
        for (struct stream *s = streams; s; s = s->next)
            if (s->graph) s->graph->is_invalid = 1;
        return last = cudaErrorStreamCaptureUnsupported;
    }
    pthread_mutex_lock(&queue_lock);
    wait_until(moment);
    if (pending) last = broken = pending;
    pthread_mutex_unlock(&queue_lock);
    return broken;
}
E cudaDeviceSynchronize(void)
{
    CALL;
    E status = wait_for(device_at);
    tell_exit(__func__);
    return status;
}
E cudaStreamSynchronize(void *s) { CALL; return wait_for(device_at); }
E cudaStreamQuery(void *s) { CALL; return device_at > host_now() ? cudaErrorNotReady : 0; }
E cudaThreadExchangeStreamCaptureMode(int *mode)
{
    int before = capture_mode;
    capture_mode = *mode;
    *mode = before;
    return 0;
}

/* ---- streams ---- */

E cudaStreamCreateWithPriority(void **s, unsigned flags, int priority)
{
    static unsigned ids = 13; /* where traces of real GPUs begin to count, the default stream being 7 */
    CALL;
    struct stream *made = calloc(1, sizeof *made);
    made->priority = priority;
    pthread_mutex_lock(&queue_lock);
    made->id = ids++;
    made->next = streams;
    streams = made;
    pthread_mutex_unlock(&queue_lock);
    *s = made;
    return 0;
}
E cudaStreamCreateWithFlags(void **s, unsigned flags) { return cudaStreamCreateWithPriority(s, flags, 0); }
E cudaStreamCreate(void **s) { return cudaStreamCreateWithPriority(s, 0, 0); }
E cudaStreamGetPriority(void *s, int *p) { *p = at(s)->priority; return 0; }

/* ---- events ---- */

E cudaEventCreateWithFlags(struct event **e, unsigned flags)
{
    CALL;
    *e = calloc(1, sizeof **e);
    (*e)->users = 1;
    return 0;
}
E cudaEventCreate(struct event **e) { return cudaEventCreateWithFlags(e, 0); }
E cudaEventDestroy(struct event *e) { let_event_go(e); return 0; }
E cudaEventRecordWithFlags(struct event *e, void *s, unsigned flags)
{
    CALL;
    struct CUgraph_st *graph = at(s)->graph;
    if (graph && !(flags & cudaEventRecordExternal)) { /* tells streams what they depend on */
        e->graph = graph;
        e->stream = at(s);
        e->work = at(s)->work;
        return 0;
    }
    if (!graph) e->graph = NULL;
    struct piece piece = {.event = e, .record.ns = (long long)(1e3 * pretend_number("PRETEND_EVENT_US", 0.5))};
    return queue(__func__, s, piece, 0);
}
E cudaEventRecord(struct event *e, void *s) { return cudaEventRecordWithFlags(e, s, 0); }
E cudaStreamWaitEvent(void *s, struct event *e, unsigned flags)
{
    CALL;
    if (!e->graph || !e->stream || e->stream->graph != e->graph) return 0;
    if (!at(s)->graph) { /* it joins the capture */
        at(s)->graph = e->graph;
        at(s)->work = at(s)->joined = 0;
    }
    if (at(s) != e->stream) e->stream->joined = e->work;
    return 0;
}
E cudaEventQuery(struct event *e)
{
    CALL;
    if (e->graph) return last = cudaErrorCapturedEvent;
    return e->is_recorded && e->at > host_now() ? cudaErrorNotReady : 0;
}
E cudaEventSynchronize(struct event *e)
{
    CALL;
    return e->graph ? (last = cudaErrorCapturedEvent) : wait_for(e->at);
}
E cudaEventElapsedTime(float *ms, struct event *a, struct event *b)
{
    CALL;
    if (!a->is_recorded || !b->is_recorded) return last = cudaErrorInvalidResourceHandle;
    if (b->at > host_now()) return last = cudaErrorNotReady;
    *ms = (b->at - a->at) / 1e6;
    return 0;
}

/* ---- graphs ---- */

E cudaStreamIsCapturing(void *s, int *is) { *is = at(s)->graph ? 1 + at(s)->graph->is_invalid : 0; return 0; }
E cudaStreamGetCaptureInfo(void *s, int *is, unsigned long long *id, void **g, void *d, void *e, size_t *n)
{
    cudaStreamIsCapturing(s, is);
    if (id && at(s)->graph) *id = at(s)->graph->id;
    if (g) *g = at(s)->graph;
    if (n) *n = 0;
    return 0;
}
E cudaStreamBeginCapture(void *s, int mode)
{
    static int ids;
    CALL;
    if (at(s) == &default_stream || at(s)->graph) return last = cudaErrorStreamCaptureUnsupported;
    at(s)->graph = calloc(1, sizeof(struct CUgraph_st));
    at(s)->graph->users = 1;
    at(s)->graph->id = ++ids;
    at(s)->is_origin = 1;
    captures++;
    return 0;
}
E cudaStreamEndCapture(void *s, struct CUgraph_st **g)
{
    CALL;
    struct CUgraph_st *graph = at(s)->graph;
    E status = 0;
    *g = NULL;
    if (!graph || !at(s)->is_origin) return last = cudaErrorInvalidValue;
    if (graph->is_invalid) status = cudaErrorStreamCaptureInvalidated;
    for (struct stream *one = streams; one; one = one->next) {
        if (one->graph != graph) continue;
        if (!one->is_origin && one->joined < one->work && !status) status = cudaErrorStreamCaptureUnjoined;
        one->graph = NULL;
        one->is_origin = 0;
    }
    captures--;
    if (status) let_graph_go(graph);
    else *g = graph;
    return last = status;
}
E cudaGraphInstantiateWithFlags(struct CUgraph_st **x, struct CUgraph_st *g, unsigned long long flags)
{
    CALL;
    g->users++;
    *x = g; /* what was captured does not change */
    return 0;
}
E cudaGraphInstantiate(struct CUgraph_st **x, struct CUgraph_st *g, unsigned long long flags)
{
    CALL;
    return cudaGraphInstantiateWithFlags(x, g, flags);
}
E cudaGraphDestroy(struct CUgraph_st *g) { let_graph_go(g); return 0; }
E cudaGraphExecDestroy(struct CUgraph_st *g) { let_graph_go(g); return 0; }
E cudaGraphGetNodes(struct CUgraph_st *g, void *nodes, size_t *n) { *n = g->count; return 0; }
E cudaGraphLaunch(struct CUgraph_st *g, void *s)
{
    CALL;
    pthread_mutex_lock(&queue_lock);
    enter();
    unsigned call = tell_call(__func__);
    for (size_t i = 0; i < g->count; i++) {
        struct piece piece = g->pieces[i];
        piece.record.stream = at(s)->id;
        perform(&piece, call);
    }
    leave();
    pthread_mutex_unlock(&queue_lock);
    tell_exit(__func__);
    return 0;
}
