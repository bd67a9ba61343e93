//! The simulated libcuda.so.1: an implementation of the CUDA driver API on a simulated device.
//!
//! Kernels compute nothing (but for those of `program`) and take a computed time (see `launch`), and so do memsets and copies within a device; copies
//! from and to the host take none (see `transfer`). All streams of a context share one in-order queue. Private export
//! tables are refused. Nothing is ever printed.

#![allow(non_snake_case)] // the functions have the names of cuda.h

mod array;
mod block_copy;
mod capture;
mod checkpoint;
mod context;
mod copy;
mod cubin;
mod device;
mod driver;
mod event;
mod function;
mod graph;
mod graph_memory;
mod host_memory;
mod image;
mod instances;
mod kernel;
mod launch;
mod library;
mod linker;
mod lookup;
mod memory;
mod module;
mod objects;
mod occupancy;
mod per_thread;
mod pointer;
mod pool;
mod pool_sharing;
mod program;
mod program_entries;
mod ptx;
mod sharing;
mod static_data;
mod stream;
mod transfer;
mod virtual_memory;
mod wait;

gpool_driver_abi::needs_old_glibc!(library);
