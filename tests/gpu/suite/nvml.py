"""What the driver says from outside of any tenant: memory by process, power. Structures are those of nvml.h."""

import ctypes
from ctypes import byref, c_int, c_uint, c_ulonglong, c_void_p

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

    def clock_reasons(self):
        """Why the clocks are not higher, a bit for each reason."""
        found = self._number("nvmlDeviceGetCurrentClocksEventReasons", c_ulonglong())
        return self._number("nvmlDeviceGetCurrentClocksThrottleReasons", c_ulonglong()) if found is None else found

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
