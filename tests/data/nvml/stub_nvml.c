/* A stand-in for libnvidia-ml.so.1 with NVML's own C interface, for machines without a GPU.
 *
 * It answers what a text file says: that of the environment variable NVML_STUB_VALUES, else `values.txt` beside the
 * library. A line is a key and a value; `gpu.temperature` holds for every GPU, `gpu3.temperature` for the fourth, and `#`
 * in a value stands for the GPU's number. What the file does not say is NVML_ERROR_NOT_SUPPORTED. Structures and
 * versions are those of nvml.h; a caller that hands in another version is refused, as by the driver.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, TOO_SMALL = 7, LOST = 15, VERSION = 25 };
#define RECOVERY_ACTION 230

typedef struct { int index; } *Device;
typedef struct {
    char busIdLegacy[16];
    unsigned int domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} PciInfo;
typedef union { double d; unsigned int ui; unsigned long ul; unsigned long long ull; long long sll; int si; } Value;
typedef struct {
    uint32_t fieldId, scopeId;
    int64_t timestamp, latencyUsec;
    int valueType, nvmlReturn;
    Value value;
} FieldValue;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned int version; unsigned long long total, reserved, free, used; } MemoryV2;
typedef struct { unsigned int gpu, memory; } Utilization;

static char text[65536];
static int begun = 0;
static struct { int index; } handles[64];

static int load(void) {
    char path[4096];
    const char *named = getenv("NVML_STUB_VALUES");
    if (named != NULL) {
        snprintf(path, sizeof path, "%s", named);
    } else {
        Dl_info here;
        if (!dladdr((void *)load, &here)) return 0;
        snprintf(path, sizeof path - 16, "%s", here.dli_fname);
        char *slash = strrchr(path, '/');
        strcpy(slash ? slash + 1 : path, "values.txt");
    }
    FILE *file = fopen(path, "r");
    if (file == NULL) return 0;
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    return 1;
}

/* The last line of a key counts, so that a variant is a file with lines added. */
static int find(const char *key, char *out, size_t size) {
    size_t length = strlen(key);
    int found = 0;
    for (const char *line = text; *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : line + strlen(line)) {
        if (strncmp(line, key, length) == 0 && line[length] == ' ') {
            size_t end = strcspn(line + length + 1, "\n");
            snprintf(out, size, "%.*s", (int)end, line + length + 1);
            found = 1;
        }
    }
    return found;
}

static int find_of(Device device, const char *key, char *out, size_t size) {
    char name[128], told[256];
    int index = device->index, code;
    if (!begun) return UNINITIALIZED;
    snprintf(name, sizeof name, "gpu%d.lost", index);
    if (find(name, told, sizeof told)) return LOST;
    snprintf(name, sizeof name, "gpu%d.%s.error", index, key);
    if (find(name, told, sizeof told) && (code = atoi(told)) != OK) return code;
    snprintf(name, sizeof name, "gpu%d.%s", index, key);
    if (!find(name, told, sizeof told)) {
        snprintf(name, sizeof name, "gpu.%s", key);
        if (!find(name, told, sizeof told)) return NOT_SUPPORTED;
    }
    size_t at = 0;
    for (const char *c = told; *c && at + 4 < size; c++)
        at += *c == '#' ? (size_t)snprintf(out + at, size - at, "%d", index) : (out[at] = *c, (size_t)1);
    out[at] = 0;
    return OK;
}

static int number(Device device, const char *key, unsigned long long *value) {
    char told[256];
    int code = find_of(device, key, told, sizeof told);
    if (code == OK) *value = strtoull(told, NULL, 0);
    return code;
}

static int number32(Device device, const char *key, unsigned int *value) {
    unsigned long long wide = 0;
    int code = number(device, key, &wide);
    if (code == OK) *value = (unsigned int)wide;
    return code;
}

static int words(Device device, const char *key, char *out, unsigned int size) {
    char told[256];
    int code = find_of(device, key, told, sizeof told);
    if (code != OK) return code;
    if (strlen(told) + 1 > size) return TOO_SMALL;
    strcpy(out, told);
    return OK;
}

int nvmlInitWithFlags(unsigned int flags) {
    char told[64];
    (void)flags;
    if (!load()) return 9;
    if (find("init", told, sizeof told) && atoi(told) != OK) return atoi(told);
    begun = 1;
    return OK;
}
int nvmlShutdown(void) { begun = 0; return OK; }

const char *nvmlErrorString(int code) {
    switch (code) {
    case OK: return "Success";
    case 9: return "Driver Not Loaded";
    case LOST: return "GPU is lost";
    case 18: return "Driver/library version mismatch";
    default: return "Unknown Error";
    }
}

static int told_of_system(const char *key, char *out, unsigned int size) {
    char told[256];
    if (!begun) return UNINITIALIZED;
    if (!find(key, told, sizeof told)) return NOT_SUPPORTED;
    if (strlen(told) + 1 > size) return TOO_SMALL;
    strcpy(out, told);
    return OK;
}
int nvmlSystemGetDriverVersion(char *out, unsigned int size) { return told_of_system("driver", out, size); }
int nvmlSystemGetNVMLVersion(char *out, unsigned int size) { return told_of_system("library", out, size); }

int nvmlDeviceGetCount_v2(unsigned int *count) {
    char told[64];
    if (!begun) return UNINITIALIZED;
    *count = find("count", told, sizeof told) ? (unsigned int)atoi(told) : 0;
    return OK;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, Device *device) {
    unsigned int count = 0;
    int code = nvmlDeviceGetCount_v2(&count);
    if (code != OK) return code;
    if (index >= count || index >= 64) return INVALID;
    handles[index].index = (int)index;
    *device = (Device)&handles[index];
    return OK;
}
int nvmlDeviceGetPciInfo_v3(Device device, PciInfo *pci) {
    unsigned int bus = 0;
    int code = number32(device, "bus", &bus);
    if (code != OK) return code;
    memset(pci, 0, sizeof *pci);
    pci->bus = bus;
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "0000:%02X:00.0", bus & 0xff);
    snprintf(pci->busId, sizeof pci->busId, "00000000:%02X:00.0", bus & 0xff);
    return OK;
}
int nvmlDeviceGetName(Device device, char *out, unsigned int size) { return words(device, "model", out, size); }
int nvmlDeviceGetUUID(Device device, char *out, unsigned int size) { return words(device, "uuid", out, size); }
int nvmlDeviceGetSerial(Device device, char *out, unsigned int size) { return words(device, "serial", out, size); }
int nvmlDeviceGetVbiosVersion(Device device, char *out, unsigned int size) { return words(device, "vbios", out, size); }

int nvmlDeviceGetFieldValues(Device device, int count, FieldValue *values) {
    if (!begun) return UNINITIALIZED;
    for (int i = 0; i < count; i++) {
        unsigned int told = 0;
        int code = values[i].fieldId == RECOVERY_ACTION ? number32(device, "recovery_action", &told) : INVALID;
        if (code == LOST) return LOST;
        values[i].nvmlReturn = code;
        values[i].valueType = 1;
        values[i].value.ull = 0xdeadbeef00000000ULL; /* what a reader of the wrong member would see */
        values[i].value.ui = told;
    }
    return OK;
}
int nvmlDeviceGetTotalEccErrors(Device device, int type, int counter, unsigned long long *count) {
    static const char *names[2][2] = {{"ecc_corrected", "ecc_corrected_aggregate"},
                                      {"ecc_uncorrectable", "ecc_uncorrectable_aggregate"}};
    if (type < 0 || type > 1 || counter < 0 || counter > 1) return INVALID;
    return number(device, names[type][counter], count);
}
int nvmlDeviceGetRemappedRows(Device device, unsigned int *corrected, unsigned int *uncorrected, unsigned int *pending,
                              unsigned int *failed) {
    int code = number32(device, "rows_corrected", corrected);
    if (code == OK) code = number32(device, "rows_uncorrected", uncorrected);
    if (code == OK) code = number32(device, "rows_pending", pending);
    return code == OK ? number32(device, "rows_failed", failed) : code;
}
int nvmlDeviceGetNvLinkState(Device device, unsigned int link, unsigned int *is_active) {
    unsigned int count = 0, up = 0;
    int code = number32(device, "nvlinks", &count);
    if (code != OK) return code;
    if (link >= count) return INVALID;
    code = number32(device, "nvlinks_up", &up);
    *is_active = link < up;
    return code;
}
#define NUMBER(function, key) \
    int function(Device device, unsigned int *value) { return number32(device, key, value); }
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, "pcie_width")
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, "pcie_width_max")
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, "pcie_generation")
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, "pcie_generation_max")
NUMBER(nvmlDeviceGetPersistenceMode, "persistence_mode")
NUMBER(nvmlDeviceGetPowerUsage, "power_milliwatts")
NUMBER(nvmlDeviceGetPowerManagementLimit, "power_limit_milliwatts")
NUMBER(nvmlDeviceGetEnforcedPowerLimit, "power_limit_milliwatts")
NUMBER(nvmlDeviceGetPcieReplayCounter, "pcie_replays")
NUMBER(nvmlDeviceGetFanSpeed, "fan_percent")

int nvmlDeviceGetCurrentClocksEventReasons(Device device, unsigned long long *reasons) {
    return number(device, "clock_event_reasons", reasons);
}
int nvmlDeviceGetTotalEnergyConsumption(Device device, unsigned long long *millijoules) {
    return number(device, "energy_millijoules", millijoules);
}
int nvmlDeviceGetTemperature(Device device, int sensor, unsigned int *celsius) {
    return sensor == 0 ? number32(device, "temperature", celsius) : INVALID;
}
int nvmlDeviceGetTemperatureThreshold(Device device, int threshold, unsigned int *celsius) {
    if (threshold == 0) return number32(device, "temperature_shutdown", celsius);
    return threshold == 1 ? number32(device, "temperature_slowdown", celsius) : NOT_SUPPORTED;
}
int nvmlDeviceGetClockInfo(Device device, int clock, unsigned int *mhz) {
    if (clock == 1) return number32(device, "clock_sm", mhz);
    return clock == 2 ? number32(device, "clock_memory", mhz) : INVALID;
}
int nvmlDeviceGetUtilizationRates(Device device, Utilization *rates) {
    int code = number32(device, "utilisation", &rates->gpu);
    return code == OK ? number32(device, "utilisation_memory", &rates->memory) : code;
}
int nvmlDeviceGetMemoryInfo(Device device, Memory *memory) {
    int code = number(device, "memory_total", &memory->total);
    if (code == OK) code = number(device, "memory_used", &memory->used);
    memory->free = memory->total - memory->used;
    return code;
}
int nvmlDeviceGetMemoryInfo_v2(Device device, MemoryV2 *memory) {
    if (memory->version != (sizeof *memory | 2u << 24)) return VERSION;
    int code = number(device, "memory_total", &memory->total);
    if (code == OK) code = number(device, "memory_used", &memory->used);
    if (code == OK) code = number(device, "memory_reserved", &memory->reserved);
    memory->free = memory->total - memory->used - memory->reserved;
    return code;
}
