/* A pretend CUDA runtime, its first part: one device, errors, and memory. The second part is queue.c.
 *
 * Loaded before libcudart, it makes torch believe in one GPU. Memory is the host's and ends at PRETEND_MEMORY bytes
 * (4 GiB), so copies are real. PRETEND_CLOCK is the clock in MHz (1980). PRETEND_PIDS=FOLDER: processes that hold
 * memory have a file there, for the pretend NVML.
 * Written against NVIDIA's public declarations (cuda_runtime_api.h); pretendgpu.py adds what is missing as functions
 * that only say "success", or fail on request.
 */
#include "pretend.h"
#include <driver_types.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <time.h>
#include <unistd.h>

typedef cudaError_t E;
struct dim { unsigned x, y, z; };

/* ---- errors ---- */

static __thread E last;
static E pending; /* a kernel failed; the next call that waits for the device says so */
static E broken;  /* it was said: every call says so from now on */

static E begin(const char *name)
{
    int status = pretend_status(name);
    return broken ? broken : status;
}
#define CALL do { E status = begin(__func__); if (status) return last = status; } while (0)

static const struct { E status; const char *name, *words; } errors[] = {
    {0, "cudaSuccess", "no error"},
    {1, "cudaErrorInvalidValue", "invalid argument"},
    {2, "cudaErrorMemoryAllocation", "out of memory"},
    {3, "cudaErrorInitializationError", "initialization error"},
    {35, "cudaErrorInsufficientDriver", "CUDA driver version is insufficient for CUDA runtime version"},
    {46, "cudaErrorDevicesUnavailable", "CUDA-capable device(s) is/are busy or unavailable"},
    {98, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    {100, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {101, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {209, "cudaErrorNoKernelImageForDevice", "no kernel image is available for execution on the device"},
    {214, "cudaErrorECCUncorrectable", "uncorrectable ECC error encountered"},
    {400, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {500, "cudaErrorSymbolNotFound", "named symbol not found"},
    {600, "cudaErrorNotReady", "device not ready"},
    {700, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    {702, "cudaErrorLaunchTimeout", "the launch timed out and was terminated"},
    {710, "cudaErrorAssert", "device-side assert triggered"},
    {719, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {801, "cudaErrorNotSupported", "operation not supported"},
    {802, "cudaErrorSystemNotReady", "system not yet initialized"},
    {900, "cudaErrorStreamCaptureUnsupported", "operation not permitted when stream is capturing"},
    {901, "cudaErrorStreamCaptureInvalidated", "operation failed due to a previous error during capture"},
    {904, "cudaErrorStreamCaptureUnjoined", "capturing stream has unjoined work"},
    {907, "cudaErrorCapturedEvent", "operation not permitted on an event last recorded in a capturing stream"},
    {999, "cudaErrorUnknown", "unknown error"},
};
static int error_at(E e)
{
    int i = 0, most = sizeof errors / sizeof *errors - 1;
    while (i < most && errors[i].status != e) i++;
    return i;
}
const char *cudaGetErrorString(E e) { return errors[error_at(e)].words; }
const char *cudaGetErrorName(E e) { return errors[error_at(e)].name; }
E cudaGetLastError(void)
{
    E e = last;
    last = 0;
    return broken ? broken : e;
}
E cudaPeekAtLastError(void) { return broken ? broken : last; }

/* ---- the device ---- */

static __thread int device;

E cudaGetDeviceCount(int *n)
{
    *n = 0;
    CALL;
    *n = pretend_is_seen();
    return *n ? 0 : (last = cudaErrorNoDevice);
}
E cudaGetDevice(int *d) { *d = device; return 0; }
E cudaSetDevice(int d)
{
    CALL;
    if (d) return last = cudaErrorInvalidDevice;
    device = d;
    return 0;
}
E cudaDriverGetVersion(int *v) { *v = 13020; return 0; }
E cudaRuntimeGetVersion(int *v) { *v = 13020; return 0; }
E cudaGetDeviceProperties(struct cudaDeviceProp *p, int d)
{
    CALL;
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "%s", pretend_gpu_name());
    p->major = 9;
    p->totalGlobalMem = (size_t)80 << 30;
    p->multiProcessorCount = 132;
    p->warpSize = 32;
    p->maxThreadsPerBlock = 1024;
    p->maxThreadsPerMultiProcessor = 2048;
    p->maxBlocksPerMultiProcessor = 32;
    p->l2CacheSize = 50 << 20;
    p->sharedMemPerBlock = 48 << 10;
    p->sharedMemPerBlockOptin = 227 << 10;
    p->sharedMemPerMultiprocessor = 228 << 10;
    p->regsPerBlock = p->regsPerMultiprocessor = 65536;
    p->maxGridSize[0] = 2147483647;
    p->maxGridSize[1] = p->maxGridSize[2] = 65535;
    p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
    p->maxThreadsDim[2] = 64;
    p->memoryBusWidth = 5120;
    p->concurrentKernels = p->unifiedAddressing = p->managedMemory = p->canMapHostMemory = 1;
    p->textureAlignment = 512;
    return 0;
}
E cudaDeviceGetAttribute(int *v, int attribute, int d)
{
    CALL;
    *v = 1;
    switch (attribute) { /* enum cudaDeviceAttr */
    case 1: *v = 1024; break;                  /* threads of a block */
    case 5: *v = 2147483647; break;            /* grid */
    case 6: case 7: *v = 65535; break;
    case 10: *v = 32; break;                   /* warp */
    case 13: *v = 1980000; break;              /* highest clock, kHz */
    case 16: *v = 132; break;                  /* multiprocessors */
    case 36: *v = 2619000; break;              /* memory clock, kHz */
    case 37: *v = 5120; break;                 /* bus */
    case 38: *v = 50 << 20; break;             /* L2 */
    case 39: *v = 2048; break;
    case 75: *v = 9; break;                    /* compute capability */
    case 76: *v = 0; break;
    case 81: *v = 228 << 10; break;
    case 97: *v = 227 << 10; break;
    case 106: *v = 32; break;
    }
    return 0;
}
E cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return 0;
}
E cudaDeviceGetPCIBusId(char *text, int n, int d) { snprintf(text, n, "0000:01:00.0"); return 0; }
E cudaDeviceCanAccessPeer(int *can, int a, int b) { *can = 0; return 0; }
E cudaGetDriverEntryPointByVersion(const char *name, void **f, unsigned v, unsigned long long flags, int *found)
{
    static void *driver;
    if (!driver) driver = dlopen("libcuda.so.1", RTLD_NOW);
    *f = driver ? dlsym(driver, name) : NULL;
    if (found) *found = *f ? 0 : 1;
    return *f ? 0 : cudaErrorSymbolNotFound;
}

/* ---- memory: the host's, each block with its size before it ---- */

static size_t used;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static size_t limit(void) { return (size_t)pretend_number("PRETEND_MEMORY", (double)((size_t)4 << 30)); }
static void tell_pid(void)
{
    static int pid;
    char path[512];
    if (!getenv("PRETEND_PIDS") || pid == getpid()) return;
    pid = getpid();
    snprintf(path, sizeof path, "%s/%d", getenv("PRETEND_PIDS"), pid);
    close(creat(path, 0644));
}
E cudaMalloc(void **p, size_t n)
{
    CALL;
    tell_pid();
    size_t *block = NULL;
    pthread_mutex_lock(&lock);
    if (used + n <= limit() && !posix_memalign((void **)&block, 512, n + 512)) {
        *block = n;
        used += n;
    }
    pthread_mutex_unlock(&lock);
    *p = block ? (char *)block + 512 : NULL;
    return block ? 0 : (last = cudaErrorMemoryAllocation);
}
E cudaFree(void *p)
{
    CALL;
    if (!p) return 0;
    size_t *block = (size_t *)((char *)p - 512);
    pthread_mutex_lock(&lock);
    used -= *block;
    pthread_mutex_unlock(&lock);
    free(block);
    return 0;
}
E cudaMallocAsync(void **p, size_t n, void *s) { CALL; return cudaMalloc(p, n); }
E cudaMallocManaged(void **p, size_t n, unsigned flags) { CALL; return cudaMalloc(p, n); }
E cudaFreeAsync(void *p, void *s) { CALL; return cudaFree(p); }
E cudaMallocHost(void **p, size_t n) { CALL; return posix_memalign(p, 512, n) ? cudaErrorMemoryAllocation : 0; }
E cudaHostAlloc(void **p, size_t n, unsigned flags) { CALL; return cudaMallocHost(p, n); }
E cudaFreeHost(void *p) { free(p); return 0; }
E cudaMemGetInfo(size_t *left, size_t *all) { CALL; *all = limit(); *left = limit() - used; return 0; }
E cudaPointerGetAttributes(struct cudaPointerAttributes *a, const void *p)
{
    memset(a, 0, sizeof *a);
    a->type = cudaMemoryTypeUnregistered;
    return 0;
}
E cudaGetSymbolAddress(void **p, const void *symbol) { static char zeros[1 << 16]; *p = zeros; return 0; }
E cudaMemPoolGetAttribute(void *pool, int attribute, void *v) { *(uint64_t *)v = 0; return 0; }
E cudaDeviceGetDefaultMemPool(void **pool, int d) { static int one; *pool = &one; return 0; }
