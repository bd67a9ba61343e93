//! Scenarios about what processes hold of a GPU, and of each other's slices.

use super::super::*;

/// In the order in which they run.
pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "one-slice-two-processes",
        what: "two processes of one container share its slice and its memory cap",
        limit_s: 60,
        run: Place::Inside(one_slice_two_processes::run),
    },
    Scenario {
        name: "memory-cap",
        what: "a tenant gets its cap and no byte more, whichever of the driver's allocators it asks",
        limit_s: 120,
        run: Place::Inside(memory_cap::run),
    },
    Scenario {
        name: "kill-storm",
        what: "300 processes that allocate by every way, killed at random: no byte over the cap, none lost",
        limit_s: 180,
        run: Place::Inside(kill_storm::run),
    },
    Scenario {
        name: "kill-storm-long",
        what: "the same with 10,000",
        limit_s: 3600,
        run: Place::PartOfAnother(kill_storm::run_long),
    },
    Scenario {
        name: "shared-memory",
        what: "memory that two processes hold stays charged and below the cap, whoever is killed first",
        limit_s: 180,
        run: Place::Inside(shared_memory::run),
    },
    Scenario {
        name: "graph-memory",
        what: "graphs that allocate: charged as the device has them, below the cap, refused where they do not fit",
        limit_s: 90,
        run: Place::Inside(graph_memory::run),
    },
    Scenario {
        name: "static-data",
        what: "variables of modules and libraries are there, held and below the cap, until unload or SIGKILL",
        limit_s: 180,
        run: Place::Inside(static_data::run),
    },
    Scenario {
        name: "places-taken",
        what: "more processes than a lease has places: refused by the driver's error, until one ends",
        limit_s: 90,
        run: Place::Inside(places_taken::run),
    },
    Scenario {
        name: "file-leases",
        what: "a container that leases the files of its region delays no restart of the supervisor",
        limit_s: 60,
        run: Place::Inside(file_leases::run),
    },
    Scenario {
        name: "executed-anew",
        what: "a process that executes another program has the memory back that the one before held",
        limit_s: 60,
        run: Place::Inside(executed_anew::run),
    },
    Scenario {
        name: "rare-calls",
        what: "contexts for OpenGL and VDPAU, green ones, images of CUDA 13, multicast, a profiler's callbacks",
        limit_s: 60,
        run: Place::Inside(rare_calls::run),
    },
    Scenario {
        name: "memory-beside",
        what: "memory taken past the shim counts against the cap of a program that uses it",
        limit_s: 90,
        run: Place::Inside(memory_beside::run),
    },
    Scenario {
        name: "reserved-memory",
        what: "what a driver keeps of a GPU's memory is sold to nobody",
        limit_s: 60,
        run: Place::Inside(reserved_memory::run),
    },
];
