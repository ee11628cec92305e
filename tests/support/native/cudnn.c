/* Stands in for libcudnn where there is no NVIDIA GPU: the functions of explicit convolutions, on
 * host memory. It checks what it is given, keeps a log of calls, and fails on request, so that call
 * order, argument order, scaling factors and error paths are exercised for real. Float and double.
 *
 * FFT wants stride 1, Winograd a 3x3 filter and stride 1, DIRECT nothing ever; GEMM needs scratch
 * memory. Written against the declarations of cuDNN's headers.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, NOT_INITIALIZED = 1001, BAD = 2000, NOT_SUPPORTED = 3000 };
enum { HANDLE = 0x4844, TENSOR = 0x5445, FILTER = 0x4649, CONVOLUTION = 0x434f };

typedef struct { int kind; void *stream; } handle;
typedef struct { int kind, type, size[4], stride[4]; } tensor; /* filters, too */
typedef struct { int kind, pad[2], stride[2], dilation[2], groups, compute, math; } convolution;

static char calls[1 << 16];
static char ran[1 << 12]; /* direction and algorithm of every convolution that was computed */
static char failing[64];
static int failure;
static int live;
static int math;
static void *streamed;
static size_t version = 90200;
static _Thread_local char words[256];

static int note(const char *name)
{
    size_t used = strlen(calls);
    snprintf(calls + used, sizeof calls - used, "%s\n", name);
    words[0] = 0;
    return strcmp(name, failing) ? OK : failure;
}
static int say(int status, const char *text)
{
    snprintf(words, sizeof words, "%s", text);
    return status;
}

/* for the tests */
const char *fake_calls(void) { return calls; }
const char *fake_ran(void) { return ran; }
void fake_forget(void) { calls[0] = ran[0] = failing[0] = 0; version = 90200; }
void fake_fail(const char *name, int status)
{
    snprintf(failing, sizeof failing, "%s", name);
    failure = status;
}
void fake_version(size_t number) { version = number; }
int fake_live(void) { return live; }
int fake_math(void) { return math; }
void *fake_stream(void) { return streamed; }

size_t cudnnGetVersion(void) { return version; }
const char *cudnnGetErrorString(int status)
{
    switch (status) {
    case NOT_INITIALIZED: return "CUDNN_STATUS_NOT_INITIALIZED";
    case BAD: return "CUDNN_STATUS_BAD_PARAM";
    case NOT_SUPPORTED: return "CUDNN_STATUS_NOT_SUPPORTED";
    case 4000: return "CUDNN_STATUS_INTERNAL_ERROR";
    case 5000: return "CUDNN_STATUS_EXECUTION_FAILED";
    }
    return "CUDNN_UNKNOWN_STATUS";
}
void cudnnGetLastErrorString(char *message, size_t size) { snprintf(message, size, "%s", words); }

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

int cudnnCreate(void **h) { return create("cudnnCreate", h, HANDLE, sizeof(handle)); }
int cudnnDestroy(void *h) { return destroy("cudnnDestroy", h, HANDLE); }
int cudnnSetStream(handle *h, void *stream)
{
    if (!h || h->kind != HANDLE) return BAD;
    h->stream = streamed = stream;
    return note("cudnnSetStream");
}
int cudnnCreateTensorDescriptor(void **t)
{
    return create("cudnnCreateTensorDescriptor", t, TENSOR, sizeof(tensor));
}
int cudnnDestroyTensorDescriptor(void *t)
{
    return destroy("cudnnDestroyTensorDescriptor", t, TENSOR);
}
int cudnnCreateFilterDescriptor(void **t)
{
    return create("cudnnCreateFilterDescriptor", t, FILTER, sizeof(tensor));
}
int cudnnDestroyFilterDescriptor(void *t)
{
    return destroy("cudnnDestroyFilterDescriptor", t, FILTER);
}
int cudnnCreateConvolutionDescriptor(void **c)
{
    return create("cudnnCreateConvolutionDescriptor", c, CONVOLUTION, sizeof(convolution));
}
int cudnnDestroyConvolutionDescriptor(void *c)
{
    return destroy("cudnnDestroyConvolutionDescriptor", c, CONVOLUTION);
}

int cudnnSetTensor4dDescriptorEx(tensor *t, int type, int n, int c, int h, int w, int sn, int sc,
                                 int sh, int sw)
{
    if (!t || t->kind != TENSOR || n < 1 || c < 1 || h < 1 || w < 1) return BAD;
    *t = (tensor){TENSOR, type, {n, c, h, w}, {sn, sc, sh, sw}};
    return note("cudnnSetTensor4dDescriptorEx");
}
int cudnnSetFilter4dDescriptor(tensor *t, int type, int format, int k, int c, int h, int w)
{
    if (!t || t->kind != FILTER || k < 1 || c < 1 || h < 1 || w < 1) return BAD;
    if (format == 0) *t = (tensor){FILTER, type, {k, c, h, w}, {c * h * w, h * w, w, 1}};
    if (format == 1) *t = (tensor){FILTER, type, {k, c, h, w}, {c * h * w, 1, w * c, c}};
    return format > 1 ? BAD : note("cudnnSetFilter4dDescriptor");
}
int cudnnSetConvolution2dDescriptor(convolution *c, int pad_h, int pad_w, int u, int v,
                                    int dilation_h, int dilation_w, int mode, int compute)
{
    if (!c || c->kind != CONVOLUTION || mode != 1) return BAD;
    if (pad_h < 0 || pad_w < 0 || u < 1 || v < 1 || dilation_h < 1 || dilation_w < 1)
        return say(BAD, "negative padding, or stride or dilation below 1");
    *c = (convolution){CONVOLUTION, {pad_h, pad_w}, {u, v}, {dilation_h, dilation_w}, 1, compute, 0};
    return note("cudnnSetConvolution2dDescriptor");
}
int cudnnSetConvolutionGroupCount(convolution *c, int groups)
{
    if (!c || c->kind != CONVOLUTION || groups < 1) return BAD;
    c->groups = groups;
    return note("cudnnSetConvolutionGroupCount");
}
int cudnnSetConvolutionMathType(convolution *c, int type)
{
    if (!c || c->kind != CONVOLUTION || type < 0 || type > 3) return BAD;
    c->math = type;
    return note("cudnnSetConvolutionMathType");
}

static int out_size(const tensor *x, const tensor *w, const convolution *c, int i)
{
    int reach = c->dilation[i] * (w->size[2 + i] - 1) + 1;
    return (x->size[2 + i] + 2 * c->pad[i] - reach) / c->stride[i] + 1;
}
int cudnnGetConvolution2dForwardOutputDim(const convolution *c, const tensor *x, const tensor *w,
                                          int *n, int *k, int *h, int *wide)
{
    if (x->kind != TENSOR || w->kind != FILTER || c->kind != CONVOLUTION) return BAD;
    *n = x->size[0], *k = w->size[0], *h = out_size(x, w, c, 0), *wide = out_size(x, w, c, 1);
    return note("cudnnGetConvolution2dForwardOutputDim");
}

static int fits(const handle *h, const tensor *x, const tensor *w, const convolution *c,
                const tensor *y)
{
    if (!h || h->kind != HANDLE || c->kind != CONVOLUTION) return BAD;
    if (x->kind != TENSOR || w->kind != FILTER || y->kind != TENSOR) return BAD;
    if (x->type != w->type || x->type != y->type) return BAD;
    if (c->compute != (x->type == 1)) return say(BAD, "wrong compute type");
    if (w->size[1] * c->groups != x->size[1] || w->size[0] != y->size[1])
        return say(BAD, "channels do not fit");
    if (w->size[0] % c->groups || x->size[0] != y->size[0]) return BAD;
    return out_size(x, w, c, 0) == y->size[2] && out_size(x, w, c, 1) == y->size[3] ? OK : BAD;
}

enum { FORWARD, DATA, WEIGHT };
static const int FAMILY[3][8] = {
    /* 0 any, 1 needs scratch, 2 fft, 3 winograd, 4 never */
    {0, 0, 1, 4, 2, 2, 3, 3},
    {0, 0, 2, 2, 3, 3, 4, 4},
    {0, 0, 2, 0, 4, 3, 2, 4},
};

static size_t needed(int way, int algorithm, const tensor *w, const tensor *y)
{
    size_t columns = (size_t)w->size[1] * w->size[2] * w->size[3] * y->size[2] * y->size[3];
    return FAMILY[way][algorithm] ? columns * (y->type == 1 ? 8 : 4) : 0;
}
static int supports(int way, int algorithm, const tensor *w, const convolution *c)
{
    if (algorithm < 0 || algorithm > 7) return BAD;
    int unit = c->stride[0] == 1 && c->stride[1] == 1;
    int three = w->size[2] == 3 && w->size[3] == 3;
    int family = FAMILY[way][algorithm];
    if (family == 4) return say(NOT_SUPPORTED, "not implemented");
    if (family == 2 && !unit) return say(NOT_SUPPORTED, "FFT wants stride 1");
    if (family == 3 && !(unit && three)) return say(NOT_SUPPORTED, "Winograd wants 3x3, stride 1");
    return OK;
}

static size_t at(const tensor *t, int a, int b, int i, int j)
{
    return (size_t)a * t->stride[0] + (size_t)b * t->stride[1] + (size_t)i * t->stride[2] +
           (size_t)j * t->stride[3];
}

#define CONVOLVE(TYPE)                                                                             \
    static void convolve_##TYPE(int way, TYPE alpha, TYPE beta, const tensor *xd, TYPE *x,         \
                                const tensor *wd, TYPE *w, const convolution *c, const tensor *yd, \
                                TYPE *y)                                                           \
    {                                                                                              \
        const tensor *rd = way == FORWARD ? yd : way == DATA ? xd : wd;                            \
        TYPE *r = way == FORWARD ? y : way == DATA ? x : w;                                        \
        int outs = wd->size[0] / c->groups;                                                        \
        for (int a = 0; a < rd->size[0]; a++)                                                      \
            for (int b = 0; b < rd->size[1]; b++)                                                  \
                for (int i = 0; i < rd->size[2]; i++)                                              \
                    for (int j = 0; j < rd->size[3]; j++) {                                        \
                        TYPE *p = r + at(rd, a, b, i, j);                                          \
                        *p = beta == 0 ? 0 : beta * *p;                                            \
                    }                                                                              \
        for (int n = 0; n < xd->size[0]; n++)                                                      \
            for (int k = 0; k < wd->size[0]; k++)                                                  \
                for (int oh = 0; oh < yd->size[2]; oh++)                                           \
                    for (int ow = 0; ow < yd->size[3]; ow++)                                       \
                        for (int q = 0; q < wd->size[1]; q++)                                      \
                            for (int kh = 0; kh < wd->size[2]; kh++)                               \
                                for (int kw = 0; kw < wd->size[3]; kw++) {                         \
                                    int ih = oh * c->stride[0] - c->pad[0] + kh * c->dilation[0];  \
                                    int iw = ow * c->stride[1] - c->pad[1] + kw * c->dilation[1];  \
                                    if (ih < 0 || iw < 0) continue;                                \
                                    if (ih >= xd->size[2] || iw >= xd->size[3]) continue;          \
                                    TYPE *px = x + at(xd, n, k / outs * wd->size[1] + q, ih, iw);  \
                                    TYPE *pw = w + at(wd, k, q, kh, kw);                           \
                                    TYPE *py = y + at(yd, n, k, oh, ow);                           \
                                    if (way == FORWARD) *py += alpha * *px * *pw;                  \
                                    if (way == DATA) *px += alpha * *py * *pw;                     \
                                    if (way == WEIGHT) *pw += alpha * *px * *py;                   \
                                }                                                                  \
    }
CONVOLVE(float)
CONVOLVE(double)

static int run(int way, const handle *h, const void *alpha, const tensor *xd, const void *x,
               const tensor *wd, const void *w, const convolution *c, int algorithm,
               void *workspace, size_t bytes, const void *beta, const tensor *yd, const void *y)
{
    int status = fits(h, xd, wd, c, yd);
    if (!status) status = supports(way, algorithm, wd, c);
    if (status) return status;
    if (bytes < needed(way, algorithm, wd, yd) || (bytes && !workspace))
        return say(BAD, "workspace is too small");
    math = c->math;
    size_t used = strlen(ran);
    snprintf(ran + used, sizeof ran - used, "%d %d\n", way, algorithm);
    if (xd->type == 0)
        convolve_float(way, *(const float *)alpha, *(const float *)beta, xd, (float *)x, wd,
                       (float *)w, c, yd, (float *)y);
    else if (xd->type == 1)
        convolve_double(way, *(const double *)alpha, *(const double *)beta, xd, (double *)x, wd,
                        (double *)w, c, yd, (double *)y);
    else
        return say(NOT_SUPPORTED, "this stand-in knows float and double");
    return OK;
}

static int workspace_of(const char *name, int way, const handle *h, const tensor *x,
                        const tensor *w, const convolution *c, const tensor *y, int algorithm,
                        size_t *size)
{
    int status = note(name);
    if (!status) status = fits(h, x, w, c, y);
    if (!status) status = supports(way, algorithm, w, c);
    if (!status) *size = needed(way, algorithm, w, y);
    return status;
}
int cudnnGetConvolutionForwardWorkspaceSize(handle *h, const tensor *x, const tensor *w,
                                            const convolution *c, const tensor *y, int algorithm,
                                            size_t *size)
{
    return workspace_of("cudnnGetConvolutionForwardWorkspaceSize", FORWARD, h, x, w, c, y,
                        algorithm, size);
}
int cudnnGetConvolutionBackwardDataWorkspaceSize(handle *h, const tensor *w, const tensor *y,
                                                 const convolution *c, const tensor *x,
                                                 int algorithm, size_t *size)
{
    return workspace_of("cudnnGetConvolutionBackwardDataWorkspaceSize", DATA, h, x, w, c, y,
                        algorithm, size);
}
int cudnnGetConvolutionBackwardFilterWorkspaceSize(handle *h, const tensor *x, const tensor *y,
                                                   const convolution *c, const tensor *w,
                                                   int algorithm, size_t *size)
{
    return workspace_of("cudnnGetConvolutionBackwardFilterWorkspaceSize", WEIGHT, h, x, w, c, y,
                        algorithm, size);
}
int cudnnConvolutionForward(handle *h, const void *alpha, const tensor *xd, const void *x,
                            const tensor *wd, const void *w, const convolution *c, int algorithm,
                            void *workspace, size_t bytes, const void *beta, const tensor *yd,
                            void *y)
{
    int status = note("cudnnConvolutionForward");
    return status ? status
                  : run(FORWARD, h, alpha, xd, x, wd, w, c, algorithm, workspace, bytes, beta, yd, y);
}
int cudnnConvolutionBackwardData(handle *h, const void *alpha, const tensor *wd, const void *w,
                                 const tensor *yd, const void *y, const convolution *c,
                                 int algorithm, void *workspace, size_t bytes, const void *beta,
                                 const tensor *xd, void *x)
{
    int status = note("cudnnConvolutionBackwardData");
    return status ? status
                  : run(DATA, h, alpha, xd, x, wd, w, c, algorithm, workspace, bytes, beta, yd, y);
}
int cudnnConvolutionBackwardFilter(handle *h, const void *alpha, const tensor *xd, const void *x,
                                   const tensor *yd, const void *y, const convolution *c,
                                   int algorithm, void *workspace, size_t bytes, const void *beta,
                                   const tensor *wd, void *w)
{
    int status = note("cudnnConvolutionBackwardFilter");
    return status ? status
                  : run(WEIGHT, h, alpha, xd, x, wd, w, c, algorithm, workspace, bytes, beta, yd, y);
}
