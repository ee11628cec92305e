/* The third part of the pretend CUDA runtime: copies and kernels, as programs ask for them. They go into the queue of
 * queue.c.
 */

/* ---- copies ---- */

struct copy { char *to; const char *from; size_t row, rows, to_step, from_step; int value; };

static void do_copy(const void *data)
{
    const struct copy *c = data;
    for (size_t i = 0; i < c->rows; i++) memmove(c->to + i * c->to_step, c->from + i * c->from_step, c->row);
}
static void do_set(const void *data)
{
    const struct copy *c = data;
    memset(c->to, c->value, c->row);
}
static E queue_copy(const char *call, enum pretend_kind kind, struct copy c, int value, void *s)
{
    size_t bytes = c.row * c.rows;
    struct pretend_record record = {.kind = kind, .ns = 1000 + bytes / 2000, .bytes = bytes, .value = value};
    return queue(call, s, (struct piece){record, kind == PRETEND_SET ? do_set : do_copy, &c}, sizeof c);
}
E cudaMemcpyAsync(void *to, const void *from, size_t n, int kind, void *s)
{
    CALL;
    return queue_copy(__func__, PRETEND_COPY, (struct copy){to, from, n, 1}, kind, s);
}
E cudaMemcpy2DAsync(void *to, size_t to_step, const void *from, size_t from_step, size_t n, size_t rows, int kind, void *s)
{
    CALL;
    return queue_copy(__func__, PRETEND_COPY, (struct copy){to, from, n, rows, to_step, from_step}, kind, s);
}
E cudaMemcpy(void *to, const void *from, size_t n, int kind)
{
    CALL;
    E status = cudaMemcpyAsync(to, from, n, kind, NULL);
    return status ? status : wait_for(device_at);
}
E cudaMemcpyPeerAsync(void *to, int a, const void *from, int b, size_t n, void *s) { return cudaMemcpyAsync(to, from, n, 3, s); }
E cudaMemsetAsync(void *to, int v, size_t n, void *s)
{
    CALL;
    return queue_copy(__func__, PRETEND_SET, (struct copy){.to = to, .row = n, .rows = 1, .value = v}, v, s);
}
E cudaMemset(void *to, int v, size_t n) { return cudaMemsetAsync(to, v, n, NULL); }

/* ---- kernels: torch registers a name for each ---- */

static struct function { const void *host; const char *name; } *functions;
static size_t function_count, function_room, sorted_count;

void **__cudaRegisterFatBinary(void *binary) { static void *handle; return &handle; }
void __cudaRegisterFatBinaryEnd(void **handle) {}
void __cudaUnregisterFatBinary(void **handle) {}
void __cudaRegisterVar(void) {}
void __cudaRegisterFunction(void **handle, const char *host_function, char *device_function, const char *name, int limit, void *a, void *b, void *c, void *d, int *e)
{
    if (function_count == function_room) {
        function_room = function_room ? 2 * function_room : 4096;
        functions = realloc(functions, function_room * sizeof *functions);
    }
    functions[function_count++] = (struct function){host_function, name};
}
static int compare(const void *a, const void *b)
{
    const struct function *one = a, *other = b;
    return (one->host > other->host) - (one->host < other->host);
}
static const char *name_of(const void *f)
{
    struct function asked = {f}, *found;
    pthread_mutex_lock(&queue_lock);
    if (sorted_count != function_count) qsort(functions, function_count, sizeof *functions, compare);
    sorted_count = function_count;
    found = bsearch(&asked, functions, function_count, sizeof *functions, compare);
    pthread_mutex_unlock(&queue_lock);
    return found ? found->name : "pretend_kernel";
}
E __cudaGetKernel(void **kernel, const void *f) { *kernel = (void *)f; return 0; }
E cudaLaunchKernel(const void *f, struct dim grid, struct dim block, void **arguments, size_t shared, void *s)
{
    CALL;
    const char *name = name_of(f);
    if (!strstr(name, "spin_kernel")) return pretend_run(name, s, -1, NULL, NULL, 0);
    /* torch.cuda._sleep: its argument is the cycles to spin, an int64_t */
    double us = *(int64_t *)arguments[0] / pretend_number("PRETEND_CLOCK", 1980);
    struct pretend_record record = {.kind = PRETEND_KERNEL, .name = name, .ns = (long long)(1e3 * us)};
    return queue(__func__, s, (struct piece){.record = record, .is_spin = 1}, 0);
}
E __cudaLaunchKernel(const void *f, struct dim g, struct dim b, void **a, size_t shared, void *s) { return cudaLaunchKernel(f, g, b, a, shared, s); }
E cudaLaunchCooperativeKernel(const void *f, struct dim g, struct dim b, void **a, size_t shared, void *s) { return cudaLaunchKernel(f, g, b, a, shared, s); }
E cudaLaunchKernelExC(const cudaLaunchConfig_t *c, const void *f, void **a) { CALL; return pretend_run(name_of(f), c->stream, -1, NULL, NULL, 0); }
E cudaLaunchHostFunc(void *s, void (*call)(void *), void *data) { CALL; call(data); return 0; }
E cudaStreamAddCallback(void *s, void (*call)(void *, E, void *), void *data, unsigned flags) { CALL; call(s, 0, data); return 0; }

static __thread struct { struct dim grid, block; size_t shared; void *stream; } waiting[8];
static __thread int depth;

unsigned __cudaPushCallConfiguration(struct dim grid, struct dim block, size_t shared, void *s)
{
    waiting[depth].grid = grid;
    waiting[depth].block = block;
    waiting[depth].shared = shared;
    waiting[depth++].stream = s;
    return 0;
}
E __cudaPopCallConfiguration(struct dim *grid, struct dim *block, size_t *shared, void **s)
{
    depth--;
    *grid = waiting[depth].grid;
    *block = waiting[depth].block;
    *shared = waiting[depth].shared;
    *s = waiting[depth].stream;
    return 0;
}
E cudaFuncGetAttributes(struct cudaFuncAttributes *a, const void *f)
{
    memset(a, 0, sizeof *a);
    a->maxThreadsPerBlock = 1024;
    a->numRegs = 32;
    a->binaryVersion = a->ptxVersion = 90;
    return 0;
}
E cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *n, const void *f, int b, size_t s) { *n = 2; return 0; }
E cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *n, const void *f, int b, size_t s, unsigned x) { *n = 2; return 0; }
