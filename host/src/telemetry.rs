//! What the host tells of itself: logs, metrics, and whether it is healthy. Never an object's name in a label, never a secret anywhere.

mod cache;
mod guests;
mod held;
mod http;
mod log;
mod metrics;
mod process;

pub use http::{Health, serve};
pub use log::{LogFormat, ReconcileLog, init as init_log};
pub use metrics::{ControllerMetrics, Counted, Metrics, PluginMetrics, Seen};
