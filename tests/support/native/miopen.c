/* Stands in for libMIOpen where there is no AMD GPU: the functions of immediate mode, on host
 * memory, in float. It checks what it is given, keeps a log of calls, and fails on request, so that
 * call order, argument order and error paths are exercised for real.
 *
 * Solutions of a problem: 101 direct, 102 gemm (workspace), 103 winograd (3x3, stride 1 only),
 * 104 and 105 implicit GEMM. Their times are ranks times 10 ms, as without a record. Written against the declarations of miopen.h, not from its code.
 */
#define _DEFAULT_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, INVALID = 2, BAD = 3, INTERNAL = 5 };
enum { HANDLE = 0x4d49, TENSOR = 0x5445, CONVOLUTION = 0x434f };

typedef struct { int kind; void *stream; } handle;
typedef struct { int kind, type, count, size[5], stride[5]; } tensor;
typedef struct { int kind, mode, pad[2], stride[2], dilation[2], groups; } convolution;
typedef struct { float time; size_t workspace; uint64_t id; int algorithm; } solution;

static char calls[1 << 16];
static char failing[64];
static int failure;
static uint64_t compiled[64];
static int compiled_count;
static uint64_t uncompilable;
static int live;
static size_t version_major = 3;

static int note(const char *name)
{
    size_t used = strlen(calls);
    snprintf(calls + used, sizeof calls - used, "%s\n", name);
    return strcmp(name, failing) ? OK : failure;
}

/* for the tests */
const char *fake_calls(void) { return calls; }
void fake_forget(void)
{
    calls[0] = failing[0] = 0;
    compiled_count = 0;
    uncompilable = 0;
    version_major = 3;
}
void fake_uncompilable(uint64_t id) { uncompilable = id; }
void fake_fail(const char *name, int status)
{
    snprintf(failing, sizeof failing, "%s", name);
    failure = status;
}
void fake_version(size_t major) { version_major = major; }
int fake_live(void) { return live; }

const char *miopenGetErrorString(int status)
{
    if (status == 5)
        return "miopenStatusInternalError";
    return status == INVALID ? "miopenStatusInvalidValue" : "miopenStatusUnknownError";
}

int miopenGetVersion(size_t *major, size_t *minor, size_t *patch)
{
    *major = version_major, *minor = 3, *patch = 0;
    return note("miopenGetVersion");
}

static int create(const char *name, void **out, int kind, size_t size)
{
    int status = note(name);
    if (status) return status;
    *out = calloc(1, size);
    *(int *)*out = kind;
    live++;
    return OK;
}

static int destroy(const char *name, void *it, int kind)
{
    int status = note(name);
    if (status) return status;
    if (!it || *(int *)it != kind) return BAD;
    *(int *)it = 0;
    free(it);
    live--;
    return OK;
}

int miopenCreateWithStream(void **out, void *stream)
{
    int status = create("miopenCreateWithStream", out, HANDLE, sizeof(handle));
    if (!status) ((handle *)*out)->stream = stream;
    return status;
}
int miopenSetStream(handle *h, void *stream)
{
    if (!h || h->kind != HANDLE) return BAD;
    h->stream = stream;
    return note("miopenSetStream");
}
int miopenDestroy(void *h) { return destroy("miopenDestroy", h, HANDLE); }
int miopenCreateTensorDescriptor(void **out)
{
    return create("miopenCreateTensorDescriptor", out, TENSOR, sizeof(tensor));
}
int miopenDestroyTensorDescriptor(void *t)
{
    return destroy("miopenDestroyTensorDescriptor", t, TENSOR);
}
int miopenCreateConvolutionDescriptor(void **out)
{
    return create("miopenCreateConvolutionDescriptor", out, CONVOLUTION, sizeof(convolution));
}
int miopenDestroyConvolutionDescriptor(void *c)
{
    return destroy("miopenDestroyConvolutionDescriptor", c, CONVOLUTION);
}

int miopenSetTensorDescriptor(tensor *t, int type, int count, const int *size, const int *stride)
{
    if (!t || t->kind != TENSOR || count != 4) return BAD;
    if (type != 0 && type != 1 && type != 5 && type != 6) return INVALID;
    for (int i = 0; i < count; i++) {
        if (size[i] < 1 || stride[i] < 1) return INVALID;
        t->size[i] = size[i], t->stride[i] = stride[i];
    }
    t->type = type, t->count = count;
    return note("miopenSetTensorDescriptor");
}

int miopenInitConvolutionDescriptor(convolution *c, int mode, int pad_h, int pad_w, int stride_h,
                                    int stride_w, int dilation_h, int dilation_w)
{
    if (!c || c->kind != CONVOLUTION) return BAD;
    if (mode != 0 || pad_h < 0 || pad_w < 0 || stride_h < 1 || stride_w < 1) return INVALID;
    if (dilation_h < 1 || dilation_w < 1) return INVALID;
    *c = (convolution){CONVOLUTION, mode, {pad_h, pad_w}, {stride_h, stride_w},
                       {dilation_h, dilation_w}, 1};
    return note("miopenInitConvolutionDescriptor");
}
int miopenSetConvolutionGroupCount(convolution *c, int groups)
{
    if (!c || c->kind != CONVOLUTION || groups < 1) return BAD;
    c->groups = groups;
    return note("miopenSetConvolutionGroupCount");
}

/* x: input, w: filters, y: output, of the forward convolution */
static int fits(const handle *h, const tensor *x, const tensor *w, const convolution *c,
                const tensor *y)
{
    if (!h || h->kind != HANDLE || !c || c->kind != CONVOLUTION) return BAD;
    if (x->kind != TENSOR || w->kind != TENSOR || y->kind != TENSOR) return BAD;
    if (w->size[1] * c->groups != x->size[1] || w->size[0] != y->size[1]) return BAD;
    if (x->size[0] != y->size[0] || w->size[0] % c->groups) return BAD;
    for (int i = 0; i < 2; i++) {
        int reach = c->dilation[i] * (w->size[2 + i] - 1) + 1;
        int out = (x->size[2 + i] + 2 * c->pad[i] - reach) / c->stride[i] + 1;
        if (out != y->size[2 + i]) return BAD;
    }
    return OK;
}

static size_t workspace_of(const tensor *x, const tensor *w, const tensor *y)
{
    return sizeof(float) * w->size[1] * w->size[2] * w->size[3] * y->size[2] * y->size[3];
}

static size_t offer(const tensor *x, const tensor *w, const convolution *c, const tensor *y,
                    size_t most, solution *out)
{
    int small = w->size[2] == 3 && w->size[3] == 3 && c->stride[0] == 1 && c->stride[1] == 1;
    solution all[] = {{50, 0, 101, 1},
                      {20, workspace_of(x, w, y), 102, 0},
                      {30, 0, 104, 5},
                      {40, 0, 105, 5},
                      {10, 0, 103, 3}};
    size_t count = small ? 5 : 4;
    for (size_t i = 0; out && i < count && i < most; i++) out[i] = all[i];
    return count < most ? count : most;
}

static int is_compiled(uint64_t id)
{
    for (int i = 0; i < compiled_count; i++)
        if (compiled[i] == id) return 1;
    return 0;
}

static size_t at(const tensor *t, int a, int b, int i, int j)
{
    return (size_t)a * t->stride[0] + (size_t)b * t->stride[1] + (size_t)i * t->stride[2] +
           (size_t)j * t->stride[3];
}

/* all three directions visit the same products */
static void convolve(char way, const tensor *xd, float *x, const tensor *wd, float *w,
                     const convolution *c, const tensor *yd, float *y)
{
    int per = wd->size[1], outs = wd->size[0] / c->groups;
    const tensor *rd = way == 'f' ? yd : way == 'd' ? xd : wd;
    float *r = way == 'f' ? y : way == 'd' ? x : w;
    for (int a = 0; a < rd->size[0]; a++)
        for (int b = 0; b < rd->size[1]; b++)
            for (int i = 0; i < rd->size[2]; i++)
                for (int j = 0; j < rd->size[3]; j++) r[at(rd, a, b, i, j)] = 0;
    for (int n = 0; n < xd->size[0]; n++)
        for (int k = 0; k < wd->size[0]; k++)
            for (int oh = 0; oh < yd->size[2]; oh++)
                for (int ow = 0; ow < yd->size[3]; ow++)
                    for (int q = 0; q < per; q++)
                        for (int kh = 0; kh < wd->size[2]; kh++)
                            for (int kw = 0; kw < wd->size[3]; kw++) {
                                int ih = oh * c->stride[0] - c->pad[0] + kh * c->dilation[0];
                                int iw = ow * c->stride[1] - c->pad[1] + kw * c->dilation[1];
                                if (ih < 0 || iw < 0 || ih >= xd->size[2] || iw >= xd->size[3])
                                    continue;
                                float *px = x + at(xd, n, k / outs * per + q, ih, iw);
                                float *pw = w + at(wd, k, q, kh, kw);
                                float *py = y + at(yd, n, k, oh, ow);
                                if (way == 'f') *py += *px * *pw;
                                if (way == 'd') *px += *py * *pw;
                                if (way == 'w') *pw += *px * *py;
                            }
}

static int run(char way, handle *h, const tensor *xd, const void *x, const tensor *wd,
               const void *w, const convolution *c, const tensor *yd, const void *y,
               void *workspace, size_t bytes, uint64_t id)
{
    int status = fits(h, xd, wd, c, yd);
    if (status) return status;
    if (!is_compiled(id) || xd->type != 1) return INVALID;
    if (id == 102 && (!workspace || bytes < workspace_of(xd, wd, yd))) return BAD;
    convolve(way, xd, (float *)x, wd, (float *)w, c, yd, (float *)y);
    return OK;
}

#define DIRECTION(NAME, FIRST, SECOND, THIRD, X, W, Y, WAY)                                        \
    int miopenConvolution##NAME##GetSolution(handle *h, tensor *FIRST, tensor *SECOND,             \
                                             convolution *c, tensor *THIRD, size_t most,           \
                                             size_t *count, solution *out)                         \
    {                                                                                              \
        int status = fits(h, X, W, c, Y);                                                          \
        *count = status ? 0 : offer(X, W, c, Y, most, out);                                        \
        return status ? status : note("miopenConvolution" #NAME "GetSolution");                    \
    }                                                                                              \
    int miopenConvolution##NAME##CompileSolution(handle *h, tensor *FIRST, tensor *SECOND,         \
                                                 convolution *c, tensor *THIRD, uint64_t id)       \
    {                                                                                              \
        int status = fits(h, X, W, c, Y);                                                          \
        if (!status) status = note("miopenConvolution" #NAME "CompileSolution");                   \
        if (!status && id == uncompilable) status = INTERNAL;                                      \
        if (!status) compiled[compiled_count++ % 64] = id;                                         \
        return status;                                                                             \
    }                                                                                              \
    int miopenConvolution##NAME##Immediate(handle *h, tensor *FIRST, void *p_##FIRST,              \
                                           tensor *SECOND, void *p_##SECOND, convolution *c,       \
                                           tensor *THIRD, void *p_##THIRD, void *workspace,        \
                                           size_t bytes, uint64_t id)                              \
    {                                                                                              \
        int status = note("miopenConvolution" #NAME "Immediate");                                  \
        return status ? status                                                                     \
                      : run(WAY, h, X, p_##X, W, p_##W, c, Y, p_##Y, workspace, bytes, id);        \
    }

DIRECTION(Forward, w, x, y, x, w, y, 'f')
DIRECTION(BackwardData, y, w, x, x, w, y, 'd')
DIRECTION(BackwardWeights, y, x, w, x, w, y, 'w')
