/* The second part of the pretend cuDNN: which algorithm does which convolution, and the work itself.
 *
 * FFT wants stride 1, Winograd a 3x3 filter and stride 1, DIRECT nothing ever; GEMM needs scratch memory.
 */

/* ---- what a convolution needs, and may be done by ---- */

static int fits(const handle *h, const tensor *x, const tensor *w, const convolution *c, const tensor *y)
{
    if (!h || h->kind != HANDLE || c->kind != CONVOLUTION) return BAD;
    if (x->kind != TENSOR || w->kind != FILTER || y->kind != TENSOR) return BAD;
    if (x->type != w->type || x->type != y->type || x->dims != w->dims || x->dims != c->dims + 2) return BAD;
    if (c->compute != (x->type == DOUBLE)) return say(BAD, "wrong compute type");
    if (w->size[1] * c->groups != x->size[1] || w->size[0] != y->size[1]) return say(BAD, "channels do not fit");
    if (w->size[0] % c->groups || x->size[0] != y->size[0]) return BAD;
    for (int i = 0; i < c->dims; i++)
        if (out_size(x, w, c, i) != y->size[2 + i]) return BAD;
    return OK;
}

enum { FORWARD, DATA, WEIGHT };
enum { ANY, SCRATCH, FFT, WINOGRAD, NEVER };
/* by way, and by the algorithm's number in cuDNN's headers */
static const int FAMILY[3][8] = {
    {ANY, ANY, SCRATCH, NEVER, FFT, FFT, WINOGRAD, WINOGRAD},
    {ANY, ANY, FFT, FFT, WINOGRAD, WINOGRAD, NEVER, NEVER},
    {ANY, ANY, FFT, ANY, NEVER, WINOGRAD, FFT, NEVER},
};

static size_t needed(int way, int algorithm, const tensor *w, const tensor *y)
{
    size_t columns = 1;
    for (int i = 1; i < w->dims; i++) columns *= (size_t)w->size[i] * (i > 1 ? y->size[i] : 1);
    return FAMILY[way][algorithm] ? columns * (y->type == DOUBLE ? 8 : 4) : 0;
}
static int supports(int way, int algorithm, const tensor *w, const convolution *c)
{
    if (algorithm < 0 || algorithm > 7) return BAD;
    int is_unit = 1, is_three = c->dims == 2;
    for (int i = 0; i < c->dims; i++) {
        is_unit &= c->stride[i] == 1;
        is_three &= w->size[2 + i] == 3;
    }
    int family = FAMILY[way][algorithm];
    if (family == NEVER) return say(NOT_SUPPORTED, "not implemented");
    if (family == FFT && !is_unit) return say(NOT_SUPPORTED, "FFT wants stride 1");
    if (family == WINOGRAD && !(is_unit && is_three)) return say(NOT_SUPPORTED, "Winograd wants 3x3, stride 1");
    return OK;
}

/* Kernels of cuDNN's algorithms, as they stand in traces of V100 and A100 (tests/data/traces); nobody has published
 * those that an H100 runs for these calls, but for one of bfloat16. */
#define FFT_KERNELS "void fft2d_r2c_32x32<float, false, 0u, false>", "ampere_gcgemm_64x64_nt", \
    "void fft2d_c2r_32x32<float, false, false, 0u, false, false>"
#define WINOGRAD_KERNELS "void cudnn::winograd::generateWinogradTilesKernel<0, float, float>", \
    "volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1"
#define NONFUSED_KERNELS "void cudnn::winograd_nonfused::winogradForwardFilter4x4<float, float>", \
    "void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>", "volta_sgemm_128x64_nn", \
    "void cudnn::winograd_nonfused::winogradForwardOutput4x4<float, float>"
#define DGRAD_KERNEL "void cudnn::detail::dgrad_engine<float, 512, 6, 5, 3, 3, 3, false>"
#define WGRAD_KERNEL "void cudnn::cnn::wgrad_alg0_engine<float, 128, 6, 7, 3, 3, 5, false, 512>"
static const char *KERNELS[3][8][5] = {
    {{"void implicit_convolve_sgemm<float, float, 128, 6, 7, 3, 3, 5, 1, false, true, true>"},
     {"void cask_cudnn::computeOffsetsKernel<false, false>", "cudnn_ampere_scudnn_128x64_relu_xregs_large_nn_v1"},
     {"void cudnn::cnn::im2col4d_kernel<float, long>", "ampere_sgemm_128x64_nn"},
     {NULL}, {FFT_KERNELS}, {FFT_KERNELS}, {WINOGRAD_KERNELS}, {NONFUSED_KERNELS}},
    {{DGRAD_KERNEL}, {DGRAD_KERNEL}, {FFT_KERNELS}, {FFT_KERNELS}, {WINOGRAD_KERNELS}, {NONFUSED_KERNELS}},
    {{WGRAD_KERNEL}, {"volta_scudnn_128x128_stridedB_splitK_small_nn_v1"}, {FFT_KERNELS}, {WGRAD_KERNEL}, {NULL},
     {"void cudnn::winograd_nonfused::winogradWgradData4x4<float, float>",
      "void cudnn::winograd_nonfused::winogradWgradDelta4x4<float, float>", "volta_sgemm_128x32_nt",
      "void cudnn::winograd_nonfused::winogradWgradOutput4x4<float, float>"}, {FFT_KERNELS}},
};
static const char *BFLOAT16_KERNELS[] = {"void cutlass__5x_cudnn::Kernel<"
    "cutlass_tensorop_bf16_s16816fprop_optimized_bf16_256x64_32x4_nhwc_align8>", NULL};

/* ---- the work: what is queued, and what it does ---- */

typedef struct {
    int way, n, c, k, groups, in[3], out[3], filter[3], pad[3], stride[3], dilation[3];
    tensor x, w, y;
    void *memory[3]; /* of x, w and y */
    double alpha, beta;
} problem;

/* of columns at a time; of a row, four of which stay in the first cache */
enum { MOST_COLUMNS = 1 << 20, BLOCK = 512 };
#define REAL float
#include "convolve.h"
#undef REAL
#define REAL double
#include "convolve.h"
#undef REAL

/* Copy a tensor to a packed array of floats or doubles, or add such an array to it: alpha x array + beta x tensor. */
static void move(const tensor *t, void *memory, void *packed, const problem *store)
{
    int real = t->type == DOUBLE ? DOUBLE : FLOAT, count[MOST_DIMS] = {0};
    size_t all = 1;
    for (int i = 0; i < t->dims; i++) all *= t->size[i];
    for (size_t p = 0, at = 0; p < all; p++) {
        if (!store) set_value(real, packed, p, value_at(t->type, memory, at));
        else {
            double value = store->alpha * value_at(real, packed, p);
            if (store->beta != 0) value += store->beta * value_at(t->type, memory, at);
            set_value(t->type, memory, at, value);
        }
        for (int i = t->dims - 1; i >= 0; i--) { /* the next place */
            at += t->stride[i];
            if (++count[i] < t->size[i]) break;
            at -= (size_t)t->size[i] * t->stride[i];
            count[i] = 0;
        }
    }
}
static tensor channels_first(tensor t) /* before the samples */
{
    tensor before = t;
    t.size[0] = before.size[1], t.size[1] = before.size[0];
    t.stride[0] = before.stride[1], t.stride[1] = before.stride[0];
    return t;
}
/* whether its numbers lie one behind the other in the order of its sizes, in floats or doubles: it needs no copy */
static int is_packed(const tensor *t)
{
    long step = 1;
    for (int i = t->dims - 1; i >= 0; step *= t->size[i--])
        if (t->size[i] > 1 && t->stride[i] != step) return 0;
    return t->type == FLOAT || t->type == DOUBLE;
}
static void compute(const void *data)
{
    const problem *p = data;
    tensor ordered[] = {channels_first(p->x), p->w, channels_first(p->y)};
    int result = p->way == FORWARD ? 2 : p->way == DATA ? 0 : 1;
    void *packed[3];
    for (int i = 0; i < 3; i++) {
        size_t bytes = p->x.type == DOUBLE ? 8 : 4;
        for (int j = 0; j < p->x.dims; j++) bytes *= ordered[i].size[j];
        int is_in_place = is_packed(&ordered[i]) && (i != result || (p->alpha == 1 && p->beta == 0));
        packed[i] = is_in_place ? p->memory[i] : malloc(bytes);
        if (i == result) memset(packed[i], 0, bytes);
        else if (!is_in_place) move(&ordered[i], p->memory[i], packed[i], NULL);
    }
    if (p->x.type == DOUBLE) convolve_double(p, packed[0], packed[1], packed[2]);
    else convolve_float(p, packed[0], packed[1], packed[2]);
    if (packed[result] != p->memory[result]) move(&ordered[result], p->memory[result], packed[result], p);
    for (int i = 0; i < 3; i++)
        if (packed[i] != p->memory[i]) free(packed[i]);
}
static int run(const char *name, int way, const handle *h, const void *alpha, const tensor *xd, const void *x,
               const tensor *wd, const void *w, const convolution *c, int algorithm, void *workspace, size_t bytes,
               const void *beta, const tensor *yd, const void *y)
{
    int status = note(name);
    if (!status) status = fits(h, xd, wd, c, yd);
    if (!status) status = supports(way, algorithm, wd, c);
    if (status) return status;
    if (bytes < needed(way, algorithm, wd, yd) || (bytes && !workspace)) return say(BAD, "workspace is too small");
    math = c->math;
    char line[32];
    snprintf(line, sizeof line, "%d %d\n", way, algorithm);
    append(ran, sizeof ran, &ran_end, line);
    problem p = {way, xd->size[0], xd->size[1], wd->size[0], c->groups, .x = *xd, .w = *wd, .y = *yd,
                 .memory = {(void *)x, (void *)w, (void *)y}};
    p.alpha = c->compute == DOUBLE ? *(const double *)alpha : *(const float *)alpha;
    p.beta = c->compute == DOUBLE ? *(const double *)beta : *(const float *)beta;
    for (int i = 0; i < 3; i++) { /* to three dimensions, of which the first may be one */
        int from = i - 3 + c->dims, is_there = from >= 0;
        p.in[i] = is_there ? xd->size[2 + from] : 1;
        p.out[i] = is_there ? yd->size[2 + from] : 1;
        p.filter[i] = is_there ? wd->size[2 + from] : 1;
        p.pad[i] = is_there ? c->pad[from] : 0;
        p.stride[i] = is_there ? c->stride[from] : 1;
        p.dilation[i] = is_there ? c->dilation[from] : 1;
    }
    const char **kernels = KERNELS[way][algorithm];
    if (xd->type == BFLOAT16 && way == FORWARD && algorithm == 1) kernels = BFLOAT16_KERNELS;
    void (*work)(const void *) = pretend_number("PRETEND_COMPUTE", 1) ? compute : NULL;
    for (; *kernels && !status; kernels++) { /* the last of them does the work */
        if (kernels[1]) status = pretend_queue(*kernels, h->stream, NULL, NULL, 0);
        else status = pretend_queue(*kernels, h->stream, work, &p, sizeof p);
    }
    return status ? say(EXECUTION_FAILED, "a kernel could not be queued") : OK;
}
int cudnnConvolutionForward(handle *h, const void *alpha, const tensor *xd, const void *x, const tensor *wd,
                            const void *w, const convolution *c, int algorithm, void *workspace, size_t bytes,
                            const void *beta, const tensor *yd, void *y)
{
    return run(__func__, FORWARD, h, alpha, xd, x, wd, w, c, algorithm, workspace, bytes, beta, yd, y);
}
int cudnnConvolutionBackwardData(handle *h, const void *alpha, const tensor *wd, const void *w, const tensor *yd,
                                 const void *y, const convolution *c, int algorithm, void *workspace, size_t bytes,
                                 const void *beta, const tensor *xd, void *x)
{
    return run(__func__, DATA, h, alpha, xd, x, wd, w, c, algorithm, workspace, bytes, beta, yd, y);
}
int cudnnConvolutionBackwardFilter(handle *h, const void *alpha, const tensor *xd, const void *x, const tensor *yd,
                                   const void *y, const convolution *c, int algorithm, void *workspace, size_t bytes,
                                   const void *beta, const tensor *wd, void *w)
{
    return run(__func__, WEIGHT, h, alpha, xd, x, wd, w, c, algorithm, workspace, bytes, beta, yd, y);
}

/* ---- questions: scratch memory, and which algorithm to take; the second everywhere ---- */

struct answer { int algorithm, status; float ms; size_t memory; int is_deterministic, math, reserved[3]; };

static int workspace_of(const char *name, int way, const handle *h, const tensor *x, const tensor *w,
                        const convolution *c, const tensor *y, int algorithm, size_t *size)
{
    int status = note(name);
    if (!status) status = fits(h, x, w, c, y);
    if (!status) status = supports(way, algorithm, w, c);
    if (!status) *size = needed(way, algorithm, w, y);
    return status;
}
static int choose(const char *name, int *n, struct answer *a)
{
    *a = (struct answer){.algorithm = 1, .is_deterministic = 1, .math = 3 /* CUDNN_FMA_MATH */};
    *n = 1;
    return note(name);
}
/* a way's three arguments stand in the order of its call: x, w, y; w, y, x; x, y, w */
#define ASKS(NAME, WAY, FIRST, SECOND, RESULT) \
    int cudnnGet##NAME##WorkspaceSize(handle *h, tensor *FIRST, tensor *SECOND, convolution *c, tensor *RESULT, int algorithm, size_t *size) { return workspace_of(__func__, WAY, h, x, w, c, y, algorithm, size); } \
    int cudnnGet##NAME##Algorithm_v7(handle *h, void *d1, void *d2, void *c, void *d3, int most, int *n, struct answer *a) { return choose(__func__, n, a); } \
    int cudnnFind##NAME##AlgorithmEx(handle *h, void *d1, void *p1, void *d2, void *p2, void *c, void *d3, void *p3, int most, int *n, struct answer *a) { return choose(__func__, n, a); }
ASKS(ConvolutionForward, FORWARD, x, w, y)
ASKS(ConvolutionBackwardData, DATA, w, y, x)
ASKS(ConvolutionBackwardFilter, WEIGHT, x, y, w)

int cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(void *h, int m, int o, void *x, void *z, void *y, void *b, void *a, size_t *n) { *n = 0; return 0; }
int cudnnGetBatchNormalizationBackwardExWorkspaceSize(void *h, int m, int o, void *x, void *y, void *dy, void *dz, void *dx, void *b, void *a, size_t *n) { *n = 0; return 0; }
int cudnnGetBatchNormalizationTrainingExReserveSpaceSize(void *h, int m, int o, void *a, void *x, size_t *n) { *n = 0; return 0; }
int cudnnDropoutGetStatesSize(void *h, size_t *n) { *n = 1 << 20; return 0; }
