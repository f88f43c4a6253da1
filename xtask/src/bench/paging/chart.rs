//! A curve as a picture.

use std::path::Path;

use plotters::prelude::*;

use super::curve::{Curve, Point};
use super::workload::Cost;

const WIDTH: u32 = 720;
const HEIGHT: u32 = 440;
const FONT: &str = "sans-serif";
const TOMBOLO: RGBColor = RGBColor(0, 95, 135);
const KERNEL: RGBColor = RGBColor(200, 90, 20);

/// Draws slowdown over the local part into an SVG file.
pub fn draw(curve: &Curve, path: &Path) -> Result<(), String> {
    try_draw(curve, path).map_err(|error| format!("{}: {error}", path.display()))
}

fn try_draw(curve: &Curve, path: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let line = |cost: fn(&Point) -> &Result<Cost, String>| -> Vec<(f64, f64)> {
        let points = curve.points.iter();
        points.filter_map(|point| Some((point.percent as f64, curve.slowdown(cost(point))?))).collect()
    };
    let lines = [
        ("Tombolo, shm", TOMBOLO, line(|point| &point.tombolo)),
        ("kernel swap on zram", KERNEL, line(|point| &point.kernel)),
    ];
    let slowdowns = || lines.iter().flat_map(|(_, _, points)| points.iter().map(|point| point.1));
    let most = slowdowns().fold(1.0, f64::max) * 1.3;
    let least = slowdowns().fold(1.0, f64::min) * 0.9;

    let root = SVGBackend::new(path, (WIDTH, HEIGHT)).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .caption(curve.title, (FONT, 18))
        .margin(14)
        .x_label_area_size(44)
        .y_label_area_size(64)
        // Less local memory to the right: the curve rises as it gets harder.
        .build_cartesian_2d(105.0..20.0, (least..most).log_scale())?;
    chart
        .configure_mesh()
        .x_desc("local part of the working set (%)")
        .y_desc("slowdown (plain run = 1, log scale)")
        .x_label_formatter(&|percent| format!("{percent:.0}"))
        .y_label_formatter(&|slowdown| format!("{slowdown:.1}"))
        .x_labels(9)
        .y_labels(8)
        .light_line_style(WHITE)
        .label_style((FONT, 13))
        .axis_desc_style((FONT, 14))
        .draw()?;
    for (name, color, points) in lines {
        chart
            .draw_series(LineSeries::new(points.iter().copied(), color.stroke_width(2)))?
            .label(name)
            .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 20, y)], color.stroke_width(2)));
        chart.draw_series(points.iter().map(|&point| Circle::new(point, 4, color.filled())))?;
        chart.draw_series(points.iter().map(|&(percent, slowdown)| {
            let style = (FONT, 12).into_font().color(&color);
            EmptyElement::at((percent, slowdown)) + Text::new(format!("{slowdown:.1}"), (6, -14), style)
        }))?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .label_font((FONT, 13))
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .draw()?;
    root.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::workload::Unit;
    use super::*;

    #[test]
    fn a_chart_has_title_axes_and_both_lines() {
        let cost = |wall| Cost { wall, cpu: wall };
        let point = |percent, wall| {
            let (tombolo, kernel) = (Ok(cost(wall)), Ok(cost(wall * 2.0)));
            Point {
                percent,
                local_bytes: 1,
                tombolo,
                kernel,
                kernel_retries: 0,
                kernel_limit_bytes: 1,
                kernel_relieved: Default::default(),
            }
        };
        let curve = Curve {
            name: "test",
            title: "a title",
            unit: Unit::Seconds,
            working_set_bytes: 1,
            base_bytes: 1,
            plain: cost(1.0),
            huge: Ok(cost(1.0)),
            within: Ok(cost(1.0)),
            faults_a_page: None,
            points: vec![point(100, 1.1), point(50, 3.0)],
        };
        let path = std::env::temp_dir().join(format!("tombolo-chart-{}.svg", std::process::id()));
        draw(&curve, &path).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let _ = std::fs::remove_file(&path);
        for part in ["a title", "slowdown", "local part", "Tombolo, shm", "kernel swap on zram", "6.0"] {
            assert!(text.contains(part), "{part} is missing");
        }
    }
}
