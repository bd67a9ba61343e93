//! The socket: HTTP/1.1 with JSON, one request a connection.

mod authority;
mod exchange;
mod following;
mod listener;
mod ordinary;
mod routes;
mod subordinate;

pub use listener::Listener;
