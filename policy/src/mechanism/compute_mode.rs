//! NVML's compute mode: how many processes a GPU lets have contexts (nvml.h, `nvmlComputeMode_t`).

use super::Mechanism;
use super::ask::words;

words!(
    /// A GPU's compute mode, as `nvidia-smi -c` writes it.
    ComputeMode {
        /// As many as there is room for.
        Default = "DEFAULT",
        /// One process. An MPS server is one, whatever its clients are.
        ExclusiveProcess = "EXCLUSIVE_PROCESS",
        /// None.
        Prohibited = "PROHIBITED",
    }
);

impl ComputeMode {
    /// Whether a GPU in this mode serves by `mechanism`: a container that gets no context has nothing of its share.
    #[must_use]
    pub fn serves(self, mechanism: Mechanism) -> bool {
        match self {
            Self::Default => true,
            Self::ExclusiveProcess => matches!(mechanism, Mechanism::Exclusive | Mechanism::Mps),
            Self::Prohibited => false,
        }
    }
}
