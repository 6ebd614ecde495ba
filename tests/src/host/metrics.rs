//! Reads the host's metrics and probes over plain HTTP.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context, Result, ensure};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

/// A page of ours is ready at once.
const ANSWERS_WITHIN: Duration = Duration::from_secs(5);

/// The body of a page that answers 200.
pub async fn get(address: SocketAddr, path: &str) -> Result<String> {
    let exchange = async {
        let mut stream = TcpStream::connect(address).await?;
        // HTTP/1.0: the end of the answer is the end of the connection.
        stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        std::io::Result::Ok(answer)
    };
    let answer = tokio::time::timeout(ANSWERS_WITHIN, exchange).await;
    let answer = answer.with_context(|| format!("{path} took too long"))?.with_context(|| format!("get {path}"))?;
    let (head, body) = answer.split_once("\r\n\r\n").context("an answer has a head and a body")?;
    let status = head.lines().next().unwrap_or_default();
    ensure!(status.contains(" 200 "), "{path} answers {status}: {body}");
    Ok(body.to_owned())
}

/// A scrape.
#[derive(Debug, Clone)]
pub struct Metrics(String);

impl Metrics {
    /// Takes the text format of Prometheus as it is.
    pub fn parse(text: String) -> Self {
        Self(text)
    }

    /// All of it, as it came.
    pub fn text(&self) -> &str {
        &self.0
    }

    /// The sum over all series of this name that have all these labels. What is counted for the first time has no series before: 0.
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let series = self.0.lines().filter_map(|line| {
            let (series, value) = line.rsplit_once(' ')?;
            let (found, rest) = series.split_once('{').unwrap_or((series, ""));
            let fits = labels.iter().all(|(label, text)| rest.contains(&format!("{label}=\"{text}\"")));
            (found == name && fits).then(|| value.parse::<f64>().ok())?
        });
        // A sum of nothing is -0 for floats.
        series.fold(0.0, |sum, value| sum + value)
    }

    /// How many reconciles of a plugin have ended, well or not.
    pub fn reconciles(&self, plugin: &str) -> f64 {
        self.sum("controller_runtime_reconcile_total", &[("plugin", plugin)])
    }

    /// How many reconciles of a plugin have failed.
    pub fn failures(&self, plugin: &str) -> f64 {
        self.sum("controller_runtime_reconcile_errors_total", &[("plugin", plugin)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_are_summed_by_name_and_labels() {
        let metrics = Metrics::parse("# HELP x\nx_total{plugin=\"a\",result=\"ok\"} 2\nx_total{plugin=\"a\",result=\"no\"} 3\nx_total{plugin=\"b\"} 5\nx_total_more 7\n".into());
        assert!((metrics.sum("x_total", &[("plugin", "a")]) - 5.0).abs() < f64::EPSILON);
        assert!((metrics.sum("x_total", &[]) - 10.0).abs() < f64::EPSILON);
        assert!(metrics.sum("y_total", &[]).abs() < f64::EPSILON);
    }
}
