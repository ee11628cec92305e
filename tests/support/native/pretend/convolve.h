/* A convolution of packed arrays, C x N x D x H x W, in REAL: float or double. convolutions.h includes this for each.
 *
 * As products of matrices: the input is unfolded to columns, of which one output pixel needs one, for as many
 * samples at a time as fit into some megabytes. The result, of which `way` says which of the three it is, has to be
 * zeros at first. The innermost loops run along contiguous rows, so that the compiler makes vectors of them.
 */
#define JOIN2(a, b) a##b
#define JOIN(a, b) JOIN2(a, b)



/* Unfold the input of samples from `first` to `end`, or add the columns to it. */
static void JOIN(unfold_, REAL)(const problem *p, int channel, int depth, int first, int end, REAL *x, REAL *column)
{
    const int *in = p->in, *out = p->out, *filter = p->filter;
    for (int c = channel; c < channel + depth; c++)
        for (int tap = 0; tap < filter[0] * filter[1] * filter[2]; tap++)
            for (int n = first; n < end; n++)
                for (int row = 0; row < out[0] * out[1]; row++, column += out[2]) {
                    int d = row / out[1] * p->stride[0] - p->pad[0] + tap / filter[2] / filter[1] * p->dilation[0];
                    int h = row % out[1] * p->stride[1] - p->pad[1] + tap / filter[2] % filter[1] * p->dilation[1];
                    int left = tap % filter[2] * p->dilation[2] - p->pad[2], step = p->stride[2];
                    if (d < 0 || d >= in[0] || h < 0 || h >= in[1]) continue;
                    REAL *from = x + ((((size_t)c * p->n + n) * in[0] + d) * in[1] + h) * in[2];
                    for (int i = 0, w = left; i < out[2]; i++, w += step) {
                        if (w < 0 || w >= in[2]) continue;
                        if (p->way == DATA) from[w] += column[i];
                        else column[i] = from[w];
                    }
                }
}
/* c[i][j] += sum over q of a[i][q] b[q][j], where a's numbers lie `down` and `right` of each other */
static void JOIN(multiply_, REAL)(int rows, int depth, size_t n, const REAL *a, size_t down, size_t right,
                                  const REAL *b, size_t b_row, REAL *c, size_t c_row)
{
    for (size_t from = 0; from < n; from += BLOCK) {
        int length = n - from < BLOCK ? n - from : BLOCK;
        for (int i = 0; i < rows; i += 4) {
            REAL sums[4][BLOCK];
            for (int r = 0; r < 4; r++) memset(sums[r], 0, length * sizeof(REAL));
            int last = rows - 1 - i; /* rows behind it are the last one again, and are dropped */
            size_t at[4];
            for (int r = 0; r < 4; r++) at[r] = (i + (r < last ? r : last)) * down;
            for (int q = 0; q < depth; q++) {
                const REAL *restrict row = b + q * b_row + from;
                REAL w0 = a[at[0] + q * right], w1 = a[at[1] + q * right];
                REAL w2 = a[at[2] + q * right], w3 = a[at[3] + q * right];
                for (int j = 0; j < length; j++) {
                    sums[0][j] += w0 * row[j];
                    sums[1][j] += w1 * row[j];
                    sums[2][j] += w2 * row[j];
                    sums[3][j] += w3 * row[j];
                }
            }
            for (int r = 0; r < 4 && i + r < rows; r++)
                for (int j = 0; j < length; j++) c[(i + r) * c_row + from + j] += sums[r][j];
        }
    }
}
/* c[i][q] += sum over j of a[i][j] b[q][j] */
static void JOIN(multiply_rows_, REAL)(int rows, int depth, size_t n, const REAL *a, size_t a_row, const REAL *b,
                                       size_t b_row, REAL *c)
{
    for (int q = 0; q < depth; q++)
        for (int i = 0; i < rows; i++) {
            const REAL *one = a + i * a_row, *other = b + q * b_row;
            REAL sum = 0;
            for (size_t j = 0; j < n; j++) sum += one[j] * other[j];
            c[(size_t)i * depth + q] += sum;
        }
}
static void JOIN(convolve_, REAL)(const problem *p, REAL *x, REAL *w, REAL *y)
{
    size_t pixels = (size_t)p->out[0] * p->out[1] * p->out[2], all = pixels * p->n;
    int rows = p->k / p->groups, channels = p->c / p->groups;
    int depth = channels * p->filter[0] * p->filter[1] * p->filter[2];
    int samples = MOST_COLUMNS / (depth * pixels) + 1;
    for (int first = 0; first < p->n; first += samples) {
        int end = first + samples < p->n ? first + samples : p->n;
        size_t n = (end - first) * pixels;
        for (int group = 0; group < p->groups; group++) {
            REAL *column = calloc(depth * n, sizeof *column);
            REAL *filters = w + (size_t)group * rows * depth;
            REAL *out = y + (size_t)group * rows * all + first * pixels;
            if (p->way != DATA) JOIN(unfold_, REAL)(p, group * channels, channels, first, end, x, column);
            if (p->way == FORWARD) JOIN(multiply_, REAL)(rows, depth, n, filters, depth, 1, column, n, out, all);
            if (p->way == DATA) JOIN(multiply_, REAL)(depth, rows, n, filters, 1, depth, out, all, column, n);
            if (p->way == WEIGHT) JOIN(multiply_rows_, REAL)(rows, depth, n, out, all, column, n, filters);
            if (p->way == DATA) JOIN(unfold_, REAL)(p, group * channels, channels, first, end, x, column);
            free(column);
        }
    }
}
#undef JOIN
#undef JOIN2
