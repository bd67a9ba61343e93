//! The simulated libnvidia-ml.so.1: what NVML shows of simulated devices.
//!
//! As in NVIDIA's library, some functions call others through the dynamic linker, so that whatever stands in front
//! of this library sees one call twice. Nothing is ever printed.

#![allow(non_snake_case)] // the functions have the names of nvml.h

mod absent;
mod device;
mod divide;
mod events;
mod export_table;
mod field_values;
mod health;
mod library;
mod limits;
mod links;
mod memory;
mod mig;
mod processes;
mod system;
mod target;
mod utilization;

gpool_driver_abi::needs_old_glibc!(library);
