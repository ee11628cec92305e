/* A pretend cuBLAS and cuBLASLt: products of matrices, computed on the host's memory.
 *
 * Float, double, half and bfloat16, single and in strided batches, with the bias and ReLU of cuBLASLt; halves add up
 * in float. PRETEND_COMPUTE=0 computes nothing. pretendgpu.py adds what is missing as "success", which writes nothing.
 * Written against the declarations of cublas_v2.h and cublasLt.h.
 */
#include "pretend.h"
#include "values.h"

enum { OK = 0, EXECUTION_FAILED = 13 };
enum { NO_TRANSPOSE = 0 };
enum { COMPUTE_16F = 64, COMPUTE_64F = 70 };
#define CALL do { int status = pretend_status(__func__); if (status) return status; } while (0)

/* where the numbers of a matrix, or of a batch of them, lie */
typedef struct { int type; void *memory; size_t down, right, next; } matrix;
typedef struct {
    int m, n, k, batch, is_relu, bias_type;
    double alpha, beta;
    matrix a, b, c, d;
    const void *bias; /* one number for each row of d */
} product;

static matrix stored(const void *memory, int type, int transposed, size_t leading, size_t next)
{
    if (transposed == NO_TRANSPOSE) return (matrix){type, (void *)memory, 1, leading, next};
    return (matrix){type, (void *)memory, leading, 1, next};
}
static float *packed(const matrix *m, int batch, int rows, int columns)
{
    float *all = malloc(sizeof(float) * rows * columns);
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < columns; j++)
            all[(size_t)i * columns + j] = value_at(m->type, m->memory, batch * m->next + i * m->down + j * m->right);
    return all;
}
static double dot(const product *p, int batch, int i, int j)
{
    double sum = 0;
    for (int k = 0; k < p->k; k++)
        sum += value_at(DOUBLE, p->a.memory, batch * p->a.next + i * p->a.down + k * p->a.right) *
               value_at(DOUBLE, p->b.memory, batch * p->b.next + k * p->b.down + j * p->b.right);
    return sum;
}
static float float_dot(const float *a, const float *b, int n)
{
    float sum = 0;
    for (int k = 0; k < n; k++) sum += a[k] * b[k];
    return sum;
}
static void compute(const void *data)
{
    const product *p = data;
    matrix columns = {p->b.type, p->b.memory, p->b.right, p->b.down, p->b.next};
    for (int batch = 0; batch < p->batch; batch++) {
        float *a = p->a.type == DOUBLE ? NULL : packed(&p->a, batch, p->m, p->k);
        float *b = p->a.type == DOUBLE ? NULL : packed(&columns, batch, p->n, p->k);
        for (int i = 0; i < p->m; i++)
            for (int j = 0; j < p->n; j++) {
                double value = a ? float_dot(a + (size_t)i * p->k, b + (size_t)j * p->k, p->k) : dot(p, batch, i, j);
                value *= p->alpha;
                if (p->beta != 0)
                    value += p->beta * value_at(p->c.type, p->c.memory, batch * p->c.next + i * p->c.down + j * p->c.right);
                if (p->bias) value += value_at(p->bias_type, p->bias, i);
                if (p->is_relu && value < 0) value = 0;
                set_value(p->d.type, p->d.memory, batch * p->d.next + i * p->d.down + j * p->d.right, value);
            }
        free(a);
        free(b);
    }
}
/* kernels as they stand in traces of A100 (float) and H100 (bfloat16), in tests/data/traces */
static int run(void *stream, const product *p)
{
    const char *name = p->a.type == CUDA_BFLOAT16
        ? "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x64x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas"
        : "ampere_sgemm_32x32_sliced1x4_tn";
    void (*work)(const void *) = pretend_number("PRETEND_COMPUTE", 1) ? compute : NULL;
    return pretend_queue(name, stream, work, p, sizeof *p) ? EXECUTION_FAILED : OK;
}

/* ---- cuBLAS ---- */

typedef long long step; /* between the matrices of a batch, in numbers */

int cublasCreate_v2(void **h) { CALL; *h = calloc(1, 64); return OK; }
int cublasDestroy_v2(void *h) { free(h); return OK; }
int cublasGetVersion_v2(void *h, int *v) { *v = 130200; return OK; }
int cublasSetStream_v2(void **h, void *s) { h[0] = s; return OK; }
int cublasGetStream_v2(void **h, void **s) { *s = h[0]; return OK; }
int cublasGetMathMode(void *h, int *m) { *m = 0; return OK; }
int cublasGetPointerMode_v2(void *h, int *m) { *m = 0; return OK; }

static double factor(int type, const void *at) { return value_at(type, at, 0); }

int cublasGemmStridedBatchedEx(void **h, int ta, int tb, int m, int n, int k, const void *alpha, const void *a, int at, int lda, step sa, const void *b, int bt, int ldb, step sb, const void *beta, void *c, int ct, int ldc, step sc, int batch, int compute_type, int algorithm)
{
    CALL;
    int type = compute_type == COMPUTE_64F ? DOUBLE : compute_type == COMPUTE_16F ? HALF : FLOAT;
    matrix result = stored(c, ct, NO_TRANSPOSE, ldc, sc);
    product p = {m, n, k, batch, 0, 0, factor(type, alpha), factor(type, beta), stored(a, at, ta, lda, sa), stored(b, bt, tb, ldb, sb), result, result};
    return run(h[0], &p);
}
int cublasGemmEx(void **h, int ta, int tb, int m, int n, int k, const void *alpha, const void *a, int at, int lda, const void *b, int bt, int ldb, const void *beta, void *c, int ct, int ldc, int compute_type, int algorithm)
{
    CALL;
    return cublasGemmStridedBatchedEx(h, ta, tb, m, n, k, alpha, a, at, lda, 0, b, bt, ldb, 0, beta, c, ct, ldc, 0, 1, compute_type, algorithm);
}
#define PRODUCTS(LETTER, TYPE, COMPUTE) \
    int cublas##LETTER##gemm_v2(void **h, int ta, int tb, int m, int n, int k, const void *alpha, const void *a, int lda, const void *b, int ldb, const void *beta, void *c, int ldc) \
    { \
        CALL; \
        return cublasGemmEx(h, ta, tb, m, n, k, alpha, a, TYPE, lda, b, TYPE, ldb, beta, c, TYPE, ldc, COMPUTE, 0); \
    } \
    int cublas##LETTER##gemmStridedBatched(void **h, int ta, int tb, int m, int n, int k, const void *alpha, const void *a, int lda, step sa, const void *b, int ldb, step sb, const void *beta, void *c, int ldc, step sc, int batch) \
    { \
        CALL; \
        return cublasGemmStridedBatchedEx(h, ta, tb, m, n, k, alpha, a, TYPE, lda, sa, b, TYPE, ldb, sb, beta, c, TYPE, ldc, sc, batch, COMPUTE, 0); \
    } \
    int cublas##LETTER##gemv_v2(void **h, int t, int m, int n, const void *alpha, const void *a, int lda, const void *x, int dx, const void *beta, void *y, int dy) \
    { \
        CALL; \
        matrix result = {TYPE, y, dy, 0, 0}; \
        product p = {t ? n : m, 1, t ? m : n, 1, 0, 0, factor(TYPE, alpha), factor(TYPE, beta), stored(a, TYPE, t, lda, 0), {TYPE, (void *)x, dx, 0, 0}, result, result}; \
        return run(h[0], &p); \
    }
PRODUCTS(S, FLOAT, 68)
PRODUCTS(D, DOUBLE, COMPUTE_64F)

/* ---- cuBLASLt ---- */

struct layout { int type, batch; size_t rows, columns, leading; step next; };
struct description { int compute, scale, a_transposed, b_transposed, epilogue, bias_type; const void *bias; };

int cublasLtCreate(void **h) { CALL; *h = calloc(1, 64); return OK; }
int cublasLtMatrixLayoutCreate(struct layout **l, int type, size_t rows, size_t columns, int64_t leading)
{
    *l = malloc(sizeof **l);
    **l = (struct layout){type, 1, rows, columns, leading};
    return OK;
}
int cublasLtMatrixLayoutDestroy(void *l) { free(l); return OK; }
int cublasLtMatrixLayoutSetAttribute(struct layout *l, int which, const void *value, size_t n)
{
    if (which == 5) memcpy(&l->batch, value, 4); /* CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT */
    if (which == 6) memcpy(&l->next, value, 8);  /* CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET */
    return OK;
}
int cublasLtMatmulDescCreate(struct description **d, int compute, int scale)
{
    *d = malloc(sizeof **d);
    **d = (struct description){compute, scale, .epilogue = 1, .bias_type = -1};
    return OK;
}
int cublasLtMatmulDescDestroy(void *d) { free(d); return OK; }
int cublasLtMatmulDescSetAttribute(struct description *d, int which, const void *value, size_t n)
{
    switch (which) { /* cublasLtMatmulDescAttributes_t */
    case 3: memcpy(&d->a_transposed, value, 4); break;
    case 4: memcpy(&d->b_transposed, value, 4); break;
    case 7: memcpy(&d->epilogue, value, 4); break;
    case 8: memcpy(&d->bias, value, 8); break;
    case 26: memcpy(&d->bias_type, value, 4); break;
    }
    return OK;
}
int cublasLtMatmulAlgoGetHeuristic(void *h, void *o, void *a, void *b, void *c, void *d, void *p, int most, char *found, int *n)
{
    CALL;
    memset(found, 0, 96); /* cublasLtMatmulHeuristicResult_t */
    *n = 1;
    return OK;
}
int cublasLtMatmul(void *h, struct description *o, const void *alpha, const void *a, struct layout *al, const void *b, struct layout *bl, const void *beta, const void *c, struct layout *cl, void *d, struct layout *dl, void *algorithm, void *workspace, size_t bytes, void *stream)
{
    CALL;
    product p = {dl->rows, dl->columns, o->a_transposed ? al->rows : al->columns, dl->batch, .alpha = factor(o->scale, alpha), .beta = factor(o->scale, beta)};
    p.a = stored(a, al->type, o->a_transposed, al->leading, al->next);
    p.b = stored(b, bl->type, o->b_transposed, bl->leading, bl->next);
    p.c = stored(c, cl->type, NO_TRANSPOSE, cl->leading, cl->next);
    p.d = stored(d, dl->type, NO_TRANSPOSE, dl->leading, dl->next);
    p.is_relu = (o->epilogue & 2) != 0; /* CUBLASLT_EPILOGUE_RELU, _BIAS */
    p.bias = o->epilogue & 4 ? o->bias : NULL;
    p.bias_type = o->bias_type < 0 ? dl->type : o->bias_type;
    return run(stream, &p);
}
