//! The simulated libcuda.so.1: an implementation of the CUDA driver API on a simulated device.
//!
//! Kernels compute nothing and take a computed time (see `launch`). All streams of a context share one in-order
//! queue, and copies take no GPU time. Private export tables are refused. Nothing is ever printed.

#![allow(non_snake_case)] // the functions have the names of cuda.h

mod capture;
mod context;
mod device;
mod driver;
mod event;
mod graph;
mod launch;
mod lookup;
mod memory;
mod module;
mod objects;
mod stream;
mod wait;
