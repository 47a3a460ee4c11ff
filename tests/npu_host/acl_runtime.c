/* The part of CANN's ACL runtime that torch_npu needs to keep tensors, with host memory as the device's memory.
 *
 * One device, "Ascend910B1" (Atlas A2). Streams run at once and in order, so events are always complete. There is no
 * operator here: what launches one, and every CANN function that is not in this file, goes to npu_host_refuse().
 * Arguments nobody reads are left out: a C function called with more arguments than it declares ignores them.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, UNSUPPORTED = 500000, NO_CONTEXT = 107002, NO_MEMORY = 207001, ALIGNMENT = 512 };
enum { EVENT_COMPLETE = 1, STREAM_COMPLETE = 0, VECTOR_CORES = 24 };

static __thread char last_error[256];
static __thread int32_t current_device = -1; /* no context before aclrtSetDevice, as with the real runtime */
static long context;

int npu_host_refuse(const char *function) {
  snprintf(last_error, sizeof last_error,
           "npu_host: %s has no stub: this tensor operation would run on the NPU; add a kernel to tests/npu_host/ops",
           function);
  return UNSUPPORTED;
}

const char *aclGetRecentErrMsg(void) { return last_error; }

/* ---- start and stop, logging, settings: nothing to do */
int aclInit(void) { return SUCCESS; }
int aclFinalize(void) { return SUCCESS; }
int aclmdlInitDump(void) { return SUCCESS; }
int aclmdlFinalizeDump(void) { return SUCCESS; }
void aclAppLog(void) {}
int aclSetCompileopt(void) { return SUCCESS; }
int aclrtSetDeviceSatMode(void) { return SUCCESS; }
int aclrtSetSysParamOpt(void) { return SUCCESS; }
int aclrtCtxSetSysParamOpt(void) { return SUCCESS; }
int aclrtSetOpExecuteTimeOut(void) { return SUCCESS; }
int MsprofRegisterCallback(void) { return SUCCESS; }
int MsprofReportApi(void) { return SUCCESS; }
int MsprofReportCompactInfo(void) { return SUCCESS; }
int MsprofReportAdditionalInfo(void) { return SUCCESS; }
uint64_t MsprofGetHashId(void) { return 0; }
uint64_t MsprofSysCycleTime(void) { return 0; }

/* ---- the device */
int aclrtGetDeviceCount(uint32_t *count) { *count = 1; return SUCCESS; }
const char *aclrtGetSocName(void) { return "Ascend910B1"; }
int aclrtSetDevice(int32_t device) { current_device = device; return SUCCESS; }
int aclrtResetDevice(void) { return SUCCESS; }
int aclrtGetDevice(int32_t *device) {
  *device = current_device < 0 ? 0 : current_device;
  return current_device < 0 ? NO_CONTEXT : SUCCESS;
}
int aclrtGetCurrentContext(void **current) {
  *current = current_device < 0 ? NULL : &context;
  return current_device < 0 ? NO_CONTEXT : SUCCESS;
}
int aclrtSetCurrentContext(void) { return SUCCESS; }
int aclrtGetPrimaryCtxState(int32_t device, uint32_t *flags, int32_t *active) {
  (void)device, (void)flags;
  *active = current_device >= 0;
  return SUCCESS;
}
int aclrtSynchronizeDevice(void) { return SUCCESS; }
int aclrtSynchronizeDeviceWithTimeout(void) { return SUCCESS; }
int aclrtPeekAtLastError(void) { return SUCCESS; }
int aclrtDeviceCanAccessPeer(int32_t *can) { *can = 0; return SUCCESS; }
int aclrtDeviceGetBareTgid(int32_t *process) { *process = getpid(); return SUCCESS; }
int aclGetDeviceCapability(uint32_t device, int what, int64_t *value) { (void)device, (void)what; *value = 0; return SUCCESS; }
int aclrtGetDeviceInfo(uint32_t device, int what, int64_t *value) { (void)device, (void)what; *value = VECTOR_CORES; return SUCCESS; }
int aclrtGetSysParamOpt(int option, int64_t *value) { (void)option; *value = 0; return SUCCESS; }
int aclrtCtxGetSysParamOpt(int option, int64_t *value) { (void)option; *value = 0; return SUCCESS; }

/* ---- memory */
static int allocate(void **memory, size_t size) {
  return posix_memalign(memory, ALIGNMENT, size ? size : ALIGNMENT) ? NO_MEMORY : SUCCESS;
}
int aclrtMalloc(void **memory, size_t size) { return allocate(memory, size); }
int aclrtMallocAlign32(void **memory, size_t size) { return allocate(memory, size); }
int aclrtMallocHost(void **memory, size_t size) { return allocate(memory, size); }
int aclrtFree(void *memory) { free(memory); return SUCCESS; }
int aclrtFreeHost(void *memory) { free(memory); return SUCCESS; }
int aclrtMemcpy(void *to, size_t room, const void *from, size_t size) {
  if (size > room) return npu_host_refuse("aclrtMemcpy past the end of its destination");
  memmove(to, from, size);
  return SUCCESS;
}
int aclrtMemcpyAsync(void *to, size_t room, const void *from, size_t size) { return aclrtMemcpy(to, room, from, size); }
int aclrtMemset(void *to, size_t room, int32_t value, size_t size) {
  if (size > room) return npu_host_refuse("aclrtMemset past the end of its destination");
  memset(to, value, size);
  return SUCCESS;
}
int aclrtMemsetAsync(void *to, size_t room, int32_t value, size_t size) { return aclrtMemset(to, room, value, size); }
int aclrtGetMemInfo(int kind, size_t *available, size_t *total) {
  (void)kind;
  *total = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
  *available = (size_t)sysconf(_SC_AVPHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
  return SUCCESS;
}

/* ---- streams and events: handles with nothing behind them */
static int new_handle(void **handle) {
  *handle = calloc(1, ALIGNMENT);
  return *handle ? SUCCESS : NO_MEMORY;
}
int aclrtCreateStream(void **stream) { return new_handle(stream); }
int aclrtCreateStreamWithConfig(void **stream) { return new_handle(stream); }
int aclrtDestroyStream(void *stream) { free(stream); return SUCCESS; }
int aclrtDestroyStreamForce(void *stream) { free(stream); return SUCCESS; }
int aclrtSetStreamFailureMode(void) { return SUCCESS; }
int aclrtSetStreamOverflowSwitch(void) { return SUCCESS; }
int aclrtSynchronizeStream(void) { return SUCCESS; }
int aclrtSynchronizeStreamWithTimeout(void) { return SUCCESS; }
int aclrtStreamWaitEvent(void) { return SUCCESS; }
int aclrtStreamQuery(void *stream, int *status) { (void)stream; *status = STREAM_COMPLETE; return SUCCESS; }
int aclrtGetStreamAvailableNum(uint32_t *count) { *count = 1024; return SUCCESS; }
int aclrtCreateEvent(void **event) { return new_handle(event); }
int aclrtCreateEventWithFlag(void **event) { return new_handle(event); }
int aclrtCreateEventExWithFlag(void **event) { return new_handle(event); }
int aclrtDestroyEvent(void *event) { free(event); return SUCCESS; }
int aclrtRecordEvent(void) { return SUCCESS; }
int aclrtResetEvent(void) { return SUCCESS; }
int aclrtSynchronizeEvent(void) { return SUCCESS; }
int aclrtQueryEventStatus(void *event, int *status) { (void)event; *status = EVENT_COMPLETE; return SUCCESS; }
int aclrtQueryEventWaitStatus(void *event, int *status) { (void)event; *status = EVENT_COMPLETE; return SUCCESS; }
int aclrtEventElapsedTime(float *milliseconds) { *milliseconds = 0; return SUCCESS; }
