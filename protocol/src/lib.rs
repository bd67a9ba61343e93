//! What the parts of gpool say to each other: the request grammar that travels in annotations and
//! environment variables, the messages of the supervisor's socket, their errors, and a blocking client.
//!
//! Messages carry integers only (permille, bytes, nanoseconds) and ignore unknown fields, so that an
//! old hook can talk to a new supervisor during an upgrade. A change that a person asks for does not.
#![forbid(unsafe_code)]

mod answer;
mod audit;
mod baseline;
mod charges;
mod class;
mod client;
mod configuration;
mod connection;
mod counted;
mod drain;
mod driver;
mod error;
mod events;
mod explanation;
mod gpu_test;
mod guarded;
mod health;
mod history;
mod identity;
mod latency;
mod lease_state;
mod mechanism;
mod memory_limits;
mod messages;
mod mig;
mod overflow;
mod overrides;
mod quantity;
mod queue;
mod quota;
mod request;
mod reservation;
mod savings;
mod seal;
mod sizes;
mod trial;
mod update;
mod usage;
mod version;

pub use audit::{AUDIT_FORM, Beginning, Numbered};
pub use baseline::{Baseline, EnoughRequest, Unleased, UnleasedKind, UnleasedUse};
pub use charges::{Charge, Charges};
pub use class::{Class, Priority};
pub use client::{CallError, Client, ClientError, DEFAULT_SOCKET};
pub use configuration::{ChangedKey, ConfigurationView, Reloaded};
pub use counted::{
    Countable, CountedResource, Counts, INSTANCE_ANNOTATION, InstanceCount, PERCENT_ANNOTATION, PERCENT_OF_A_GPU,
    instance_annotation, is_counted_annotation,
};
pub use drain::{Drain, DrainRequest, DrainedGpu, REASON_CHARACTERS, UndrainRequest};
pub use driver::{DriverView, ShimView};
pub use error::{ErrorBody, ErrorCode};
pub use events::{Event, EventKind, EventPriority, GpuCharge};
pub use explanation::{
    BeyondBudget, GpuExplanation, LeaseExplanation, Leaving, RunLeft, ShareErrorBound, Standing, WaitCause,
};
pub use gpu_test::{GpuTest, GpuTestOutcome, GpuTestPart, GpuTestReport, GpuTestView};
pub use guarded::{GuardedProcess, MappedLibrary, OutsideProcess};
pub use health::{HealthFinding, health_words};
pub use history::{History, PastGpu, PastLease};
pub use identity::{
    BuildId, ContainerId, GpuUuid, HostPid, LEASE_UNKNOWN_REMEDY, LeaseId, PodName, PodPlace, RUN_CGROUP, gpu_path,
    lease_path, maker_of_run_cgroup, waiting_path,
};
pub use latency::{PromiseState, RequestFigures};
pub use lease_state::{LeaseFault, LeaseState, SuspensionStage, SuspensionView};
pub use mechanism::{Isolation, Mechanism, Mode};
pub use memory_limits::{MemoryLimits, MemoryLimitsState, is_limit_of};
pub use messages::{
    BindRequest, Edit, GpuView, LeaseGpuView, LeaseGranted, LeaseRequest, LeaseView, SilentGpu, SupervisorInfo,
    TimeSlices,
};
pub use mig::{MigApply, MigGoal, MigGpuView, MigInstanceView, MigPartedView, NOT_UNDER_USERS};
pub use overflow::OverflowView;
pub use overrides::{OVERRIDE_SECONDS_MAX, Override, OverrideOf, OverrideRequest};
pub use quantity::{
    LEAST_BYTES, LONGEST_SECONDS, MemoryCap, QuantityError, format_bytes, format_gpu_hours, format_gpus,
    format_permille, format_seconds, format_short_time, parse_bytes, parse_permille, parse_short_time, parse_time,
};
pub use queue::{LeaseAnswer, LeaseWaiting, WaitingView};
pub use quota::{QuotaAllowed, QuotaBudget, QuotaHeld, QuotaOf, QuotaPeriod, QuotaView};
pub use request::{
    ANNOTATION_PREFIX, Deadline, ENV_PREFIX, GPUS_LIMIT, Request, RequestError, RequestSource, check_limit, check_p99,
    parse_p99, request_keys,
};
pub use reservation::{ReservationSeat, ReservationState, ReservationView};
pub use savings::{OwnerDemand, Savings};
pub use seal::Seal;
pub use sizes::{Sizes, SizesRow};
pub use trial::{Trial, TrialRequest};
pub use update::LeaseUpdate;
pub use usage::{Usage, UsageBy, UsagePool, UsageRow, is_too_much};
pub use version::{is_build, version};
