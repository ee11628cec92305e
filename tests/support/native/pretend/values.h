/* Numbers of a type in memory, and convolutions of them; types have the numbers of cudnnDataType_t and cudaDataType. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { FLOAT = 0, DOUBLE = 1, HALF = 2, BFLOAT16 = 9, CUDA_BFLOAT16 = 14 };

static inline int bytes_of(int type) { return type == DOUBLE ? 8 : type == FLOAT ? 4 : 2; }

static inline double value_at(int type, const void *memory, size_t i)
{
    uint32_t bits;
    float value;
    if (type == FLOAT) return ((const float *)memory)[i];
    if (type == DOUBLE) return ((const double *)memory)[i];
    if (type == HALF) return ((const _Float16 *)memory)[i];
    bits = (uint32_t)((const uint16_t *)memory)[i] << 16;
    memcpy(&value, &bits, 4);
    return value;
}
static inline void set_value(int type, void *memory, size_t i, double number)
{
    float value = number;
    uint32_t bits;
    memcpy(&bits, &value, 4);
    if (type == FLOAT) ((float *)memory)[i] = value;
    else if (type == DOUBLE) ((double *)memory)[i] = number;
    else if (type == HALF) ((_Float16 *)memory)[i] = number;
    else if (value != value) ((uint16_t *)memory)[i] = 0x7fc0;
    else ((uint16_t *)memory)[i] = (bits + 0x7fff + (bits >> 16 & 1)) >> 16; /* to the nearest, ties to even */
}
