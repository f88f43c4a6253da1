//! Latency over size as a picture: Tombolo over UDP, and others over sockets.

use std::path::Path;

use plotters::prelude::*;

use super::figures::Figures;
use super::ours::{PING_PONG, who};
use super::targets::size_text;
use super::{SIZES, tcp};

const WIDTH: u32 = 800;
const HEIGHT: u32 = 520;
const FONT: &str = "sans-serif";

/// A line's name, colour and points: size and microseconds.
struct Line {
    name: &'static str,
    color: RGBColor,
    points: Vec<(f64, f64)>,
}

fn lines(figures: &Figures) -> Vec<Line> {
    let embedded = who("udp", "embedded", PING_PONG);
    let node = who("udp", "node", PING_PONG);
    let lines = [
        ("Tombolo, UDP, embedded", embedded.as_str(), RGBColor(0, 95, 135)),
        ("Tombolo, UDP, through nodes", node.as_str(), RGBColor(80, 170, 210)),
        ("libfabric tcp;ofi_rxm", "libfabric tcp;ofi_rxm", RGBColor(200, 90, 20)),
        ("libfabric udp;ofi_rxd", "libfabric udp;ofi_rxd", RGBColor(230, 160, 60)),
        ("libfabric tcp", "libfabric tcp", RGBColor(150, 60, 60)),
        ("UCX tcp, tag_lat", "UCX tcp tag_lat", RGBColor(70, 130, 60)),
        ("UCX tcp, put_lat", "UCX tcp put_lat", RGBColor(140, 190, 90)),
        ("kernel TCP", tcp::WHO, RGBColor(110, 110, 110)),
    ];
    let points = |who: &str| -> Vec<(f64, f64)> {
        let at = |size| Some((size as f64, figures.best_latency(who, size)?.value / 1000.0));
        SIZES.into_iter().filter_map(at).collect()
    };
    lines.into_iter().map(|(name, who, color)| Line { name, color, points: points(who) }).collect()
}

/// Draws it into an SVG file.
pub fn draw(figures: &Figures, path: &Path) -> Result<(), String> {
    try_draw(&lines(figures), path).map_err(|error| format!("{}: {error}", path.display()))
}

fn try_draw(lines: &[Line], path: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let latencies = || lines.iter().flat_map(|line| line.points.iter().map(|point| point.1));
    let most = latencies().fold(1.0, f64::max) * 1.5;
    let least = latencies().fold(most, f64::min) * 0.8;
    let root = SVGBackend::new(path, (WIDTH, HEIGHT)).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .caption("Latency over sockets on loopback", (FONT, 18))
        .margin(14)
        .x_label_area_size(44)
        .y_label_area_size(64)
        // A power of two below the smallest and above the largest.
        .build_cartesian_2d((48.0..1_400_000.0).log_scale().base(2.0), (least..most).log_scale())?;
    chart
        .configure_mesh()
        .x_desc("size (log scale)")
        .y_desc("half of a round trip (µs, log scale)")
        .x_label_formatter(&|size| size_text(*size as u64))
        .y_label_formatter(&|latency| format!("{latency}"))
        .x_labels(16)
        .y_labels(8)
        .light_line_style(WHITE)
        .label_style((FONT, 12))
        .axis_desc_style((FONT, 14))
        .draw()?;
    for line in lines.iter().filter(|line| !line.points.is_empty()) {
        let color = line.color;
        chart
            .draw_series(LineSeries::new(line.points.iter().copied(), color.stroke_width(2)))?
            .label(line.name)
            .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 20, y)], color.stroke_width(2)));
        chart.draw_series(line.points.iter().map(|&point| Circle::new(point, 3, color.filled())))?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .label_font((FONT, 12))
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .draw()?;
    root.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::rdma::figures::What;

    fn drawn(figures: &Figures, name: &str) -> String {
        let path = std::env::temp_dir().join(format!("tombolo-chart-{name}-{}.svg", std::process::id()));
        draw(figures, &path).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let _ = std::fs::remove_file(&path);
        text
    }

    #[test]
    fn a_chart_has_axes_and_the_lines_that_were_measured() {
        let mut figures = Figures::default();
        for size in SIZES {
            figures.note(&who("udp", "node", PING_PONG), What::MedianNs, size, 4000.0 + size as f64);
            figures.note("UCX tcp tag_lat, bbr", What::MedianNs, size, 5000.0 + size as f64);
        }
        let text = drawn(&figures, "rdma");
        for part in ["Latency over sockets", "64 B", "1 MiB", "through nodes", "tag_lat"] {
            assert!(text.contains(part), "{part} is missing");
        }
        assert!(!text.contains("embedded") && !text.contains("libfabric"));
    }

    #[test]
    fn nothing_measured_is_an_empty_chart() {
        assert!(drawn(&Figures::default(), "nothing").contains("Latency over sockets"));
    }
}
