/* The driver's libraries of a version that its kernel module is not of: NVML says so, and does nothing else. */

#define VERSION_MISMATCH 18 /* NVML_ERROR_LIB_RM_VERSION_MISMATCH, nvml.h */

int nvmlInit_v2(void)
{
    return VERSION_MISMATCH;
}

int nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    return VERSION_MISMATCH;
}

int nvmlShutdown(void)
{
    return 0;
}
