/* A pretend CUDA driver: it finds the device. pretendgpu.py adds the functions that torch looks up by name, which only
 * say "success", or fail on request.
 * Written against NVIDIA's public declarations (cuda.h).
 */
#include "pretend.h"

#define CALL do { int status = pretend_status(__func__); if (status) return status; } while (0)

int cuInit(unsigned flags) { CALL; return pretend_is_seen() ? 0 : 100; } /* CUDA_ERROR_NO_DEVICE */
int cuDriverGetVersion(int *v) { CALL; *v = 13020; return 0; }
int cuDeviceGetCount(int *n) { CALL; *n = 1; return 0; }
int cuDeviceGet(int *device, int number) { CALL; *device = number; return number ? 101 : 0; } /* CUDA_ERROR_INVALID_DEVICE */
int cuCtxGetCurrent(void **context) { static int one; CALL; *context = &one; return 0; }
/* torch asks before it looks whether a stream is captured */
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *is_active) { CALL; *flags = 0; *is_active = 1; return 0; }
int cuDeviceGetName(char *text, int size, int device) { CALL; snprintf(text, size, "%s", pretend_gpu_name()); return 0; }
