"""What the driver says from outside of any tenant: memory by process, power. Structures are those of nvml.h."""

import ctypes
from ctypes import byref, c_char_p, c_int, c_uint, c_ulonglong, c_void_p

# Of nvmlComputeMode_t; more than one process at a time has a context in the first alone.
COMPUTE_MODES = {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}


class _ProcessInfo(ctypes.Structure):
    _fields_ = [("pid", c_uint), ("used", c_ulonglong), ("gpu_instance", c_uint), ("compute_instance", c_uint)]


class _Memory(ctypes.Structure):
    _fields_ = [("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong)]


class _MemoryV2(ctypes.Structure):
    _fields_ = [("version", c_uint), ("total", c_ulonglong), ("reserved", c_ulonglong), ("free", c_ulonglong),
                ("used", c_ulonglong)]


class _Utilization(ctypes.Structure):
    _fields_ = [("gpu", c_uint), ("memory", c_uint)]


class _ProcessSample(ctypes.Structure):
    _fields_ = [("pid", c_uint), ("at_us", c_ulonglong), ("multiprocessors", c_uint), ("memory", c_uint), ("encoder", c_uint),
                ("decoder", c_uint)]


class _Limits(ctypes.Structure):
    # nvmlGetMemoryLimits_v1_t; nvmlSetMemoryLimits_v1_t is the same without the last.
    _fields_ = [("group", c_char_p), ("soft", c_ulonglong), ("hard", c_ulonglong), ("used", c_ulonglong)]


class LimitError(Exception):
    """NVML tells no limit of a cgroup, or sets none."""


# What NVML answers where it has no samples (NVML_ERROR_NOT_FOUND).
NOT_FOUND = 6
# nvmlMemoryErrorType_t and nvmlEccCounterType_t: what was not corrected, since the driver was loaded and for good.
UNCORRECTED, SINCE_LOADED, FOR_GOOD = 1, 0, 1


class Nvml:
    """The first GPU."""

    def __init__(self, library="libnvidia-ml.so.1"):
        self.library, self.device = ctypes.CDLL(library), c_void_p()
        self._call("nvmlInit_v2")
        self._call("nvmlDeviceGetHandleByIndex_v2", c_uint(0), byref(self.device))

    def _call(self, name, *arguments):
        code = getattr(self.library, name)(*arguments)
        if code != 0:
            raise OSError(f"{name} gives {code}")

    def count(self):
        """How many GPUs there are."""
        count = c_uint()
        self._call("nvmlDeviceGetCount_v2", byref(count))
        return count.value

    def uuid(self):
        text = ctypes.create_string_buffer(96)
        self._call("nvmlDeviceGetUUID", self.device, text, c_uint(96))
        return text.value.decode()

    def is_divided(self):
        """Whether MIG is on; a device without it has it off."""
        current, pending = c_uint(), c_uint()
        try:
            self._call("nvmlDeviceGetMigMode", self.device, byref(current), byref(pending))
        except (AttributeError, OSError):
            return False
        return current.value == 1

    def compute_mode(self):
        """The one of COMPUTE_MODES that it has; None where it is not told."""
        mode = self._number("nvmlDeviceGetComputeMode", c_int())
        return mode if mode is None else COMPUTE_MODES.get(mode, str(mode))

    def used_bytes(self):
        return self._memory().used

    def free_bytes(self):
        return self._memory().free

    def total_bytes(self):
        return self._memory().total

    def reserved_bytes(self):
        """What the driver keeps for itself, which its total has."""
        memory = _MemoryV2(version=ctypes.sizeof(_MemoryV2) | 2 << 24)
        self._call("nvmlDeviceGetMemoryInfo_v2", self.device, byref(memory))
        return memory.reserved

    def _memory(self):
        memory = _Memory()
        self._call("nvmlDeviceGetMemoryInfo", self.device, byref(memory))
        return memory

    def processes(self):
        """Bytes by process id."""
        count, list_ = c_uint(256), (_ProcessInfo * 256)()
        self._call("nvmlDeviceGetComputeRunningProcesses_v3", self.device, byref(count), list_)
        return {entry.pid: entry.used for entry in list_[:count.value]}

    def occupancy(self):
        """Who is there: what is used, by whom, and how busy the device was lately."""
        rates = _Utilization()
        try:
            self._call("nvmlDeviceGetUtilizationRates", self.device, byref(rates))
            percent = rates.gpu
        except (AttributeError, OSError):
            percent = None
        try:
            processes = self.processes()
        except (AttributeError, OSError) as error:
            processes = str(error)
        return {"used_bytes": self.used_bytes(), "processes": processes, "busy_percent": percent}

    def memory_limit(self, group):
        """Bytes that the processes of a cgroup may have, and have; raises LimitError where there is none."""
        limits = _Limits(group=group.encode())
        self._of_limit("nvmlDeviceGetMemoryLimits_v1", limits)
        return {"soft": limits.soft, "hard": limits.hard, "used": limits.used}

    def set_memory_limit(self, group, hard):
        self._of_limit("nvmlDeviceSetMemoryLimits_v1", _Limits(group=group.encode(), hard=hard))

    def _of_limit(self, name, limits):
        try:
            self._call(name, self.device, byref(limits))
        except (AttributeError, OSError) as error:
            raise LimitError(str(error)) from None

    def power_watts(self):
        milliwatts = c_uint()
        self._call("nvmlDeviceGetPowerUsage", self.device, byref(milliwatts))
        return milliwatts.value / 1000

    def clock_mhz(self):
        """Of the multiprocessors; None where it is not told, as of all below."""
        return self._number("nvmlDeviceGetClockInfo", c_uint(), c_int(1))

    def celsius(self):
        return self._number("nvmlDeviceGetTemperature", c_uint(), c_int(0))

    def milliwatts(self):
        return self._number("nvmlDeviceGetPowerUsage", c_uint())

    def energy_millijoules(self):
        """All that the board has drawn since its driver was loaded."""
        return self._number("nvmlDeviceGetTotalEnergyConsumption", c_ulonglong())

    def clock_reasons(self):
        """Why the clocks are not higher, a bit for each reason."""
        found = self._number("nvmlDeviceGetCurrentClocksEventReasons", c_ulonglong())
        return self._number("nvmlDeviceGetCurrentClocksThrottleReasons", c_ulonglong()) if found is None else found

    def process_samples(self, since_us):
        """How busy each process kept the device in the samples taken after that moment, in microseconds of Unix time; None
        where there are no such figures."""
        count, ask = c_uint(256), getattr(self.library, "nvmlDeviceGetProcessUtilization", None)
        if ask is None:
            return None
        list_ = (_ProcessSample * count.value)()
        code = ask(self.device, list_, byref(count), c_ulonglong(since_us))
        if code not in (0, NOT_FOUND):
            return None
        return [{"pid": its.pid, "at_us": its.at_us, "percents": [its.multiprocessors, its.memory, its.encoder, its.decoder]}
                for its in list_[:count.value if code == 0 else 0]]

    def health(self):
        """What is asked to tell whether the device is well; a code of NVML's in place of what has no answer."""
        def answered(name, numbers, *arguments):
            code = getattr(self.library, name)(self.device, *arguments, *map(byref, numbers))
            return [number.value for number in numbers] if code == 0 else f"code {code}"

        uncorrected = lambda counter: answered("nvmlDeviceGetTotalEccErrors", [c_ulonglong()], c_uint(UNCORRECTED), c_uint(counter))
        rows = answered("nvmlDeviceGetRemappedRows", [c_uint() for _ in range(4)])
        return {"corrected, uncorrected, pending, failed rows": rows,
                "uncorrected since loaded": uncorrected(SINCE_LOADED), "uncorrected for good": uncorrected(FOR_GOOD),
                "clock reasons": self.clock_reasons(), "celsius": self.celsius()}

    def _number(self, name, number, *arguments):
        try:
            self._call(name, self.device, *arguments, byref(number))
        except (AttributeError, OSError):  # A driver without this function, or a device without this sensor.
            return None
        return number.value

    def facts(self):
        driver, name = ctypes.create_string_buffer(96), ctypes.create_string_buffer(96)
        self._call("nvmlSystemGetDriverVersion", driver, c_uint(96))
        self._call("nvmlDeviceGetName", self.device, name, c_uint(96))
        return {"driver": driver.value.decode(), "gpu": name.value.decode(), "uuid": self.uuid(), "gpus_here": self.count(),
                "compute_mode": self.compute_mode()}
