//! A plot as a picture.

use std::error::Error;

use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;
use tombolo_sim::figures::Plot;

const SIZE: (u32, u32) = (640, 400);
const FONT: &str = "sans-serif";
const COLORS: [RGBColor; 4] =
    [RGBColor(0, 95, 135), RGBColor(200, 90, 20), RGBColor(60, 130, 60), RGBColor(120, 60, 140)];
const STATED: RGBColor = RGBColor(200, 0, 0);

/// Draws it, as SVG.
pub fn draw(plot: &Plot) -> Result<String, Box<dyn Error>> {
    let points = || plot.curves.iter().flat_map(|curve| &curve.points).chain(&plot.marks);
    let range = |of: &dyn Fn(&(f64, f64)) -> f64, is_logarithmic: bool| {
        let least = points().map(of).fold(f64::INFINITY, f64::min);
        let most = points().map(of).fold(f64::NEG_INFINITY, f64::max);
        match is_logarithmic {
            true => least * 0.8..most * 1.25,
            false => 0.0..most * 1.1,
        }
    };
    let (x, y) =
        (range(&|point| point.0, plot.is_logarithmic.0), range(&|point| point.1, plot.is_logarithmic.1));
    let mut text = String::new();
    match plot.is_logarithmic {
        (true, true) => chart(&mut text, plot, x.log_scale().base(2.0), y.log_scale())?,
        (true, false) => chart(&mut text, plot, x.log_scale().base(2.0), y)?,
        (false, true) => chart(&mut text, plot, x, y.log_scale())?,
        (false, false) => chart(&mut text, plot, x, y)?,
    }
    Ok(text)
}

fn chart<X, Y>(text: &mut String, plot: &Plot, x: X, y: Y) -> Result<(), Box<dyn Error>>
where
    X: AsRangedCoord<Value = f64>,
    Y: AsRangedCoord<Value = f64>,
    X::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
    Y::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let root = SVGBackend::with_string(text, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .caption(&plot.title, (FONT, 16))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(64)
        .build_cartesian_2d(x, y)?;
    chart
        .configure_mesh()
        .x_desc(plot.axes.0)
        .y_desc(plot.axes.1)
        .x_label_formatter(&|value| quantity(*value))
        .y_label_formatter(&|value| quantity(*value))
        .light_line_style(WHITE)
        .label_style((FONT, 12))
        .axis_desc_style((FONT, 13))
        .draw()?;
    for (curve, color) in plot.curves.iter().zip(COLORS.into_iter().cycle()) {
        chart
            .draw_series(LineSeries::new(curve.points.iter().copied(), color.stroke_width(2)))?
            .label(&curve.name)
            .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 18, y)], color.stroke_width(2)));
        chart.draw_series(curve.points.iter().map(|point| Circle::new(*point, 3, color.filled())))?;
    }
    if !plot.marks.is_empty() {
        chart
            .draw_series(plot.marks.iter().map(|point| Cross::new(*point, 5, STATED.stroke_width(2))))?
            .label("stated")
            .legend(|(x, y)| Cross::new((x + 9, y), 5, STATED.stroke_width(2)));
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

/// A value on an axis, in thousands of 1024 where it is a power of two.
fn quantity(value: f64) -> String {
    let is_power = value >= 1_024.0 && value.log2().fract() == 0.0;
    match value {
        value if is_power && value >= 1_048_576.0 => format!("{}M", value / 1_048_576.0),
        value if is_power => format!("{}K", value / 1_024.0),
        value if value >= 10.0 || value.fract() == 0.0 => format!("{value:.0}"),
        value => format!("{value}"),
    }
}

#[cfg(test)]
mod tests {
    use tombolo_sim::figures::Curve;

    use super::*;

    #[test]
    fn a_plot_has_title_axes_curves_and_marks_on_any_scale() {
        for is_logarithmic in [(true, true), (true, false), (false, true), (false, false)] {
            let plot = Plot {
                title: "a title".into(),
                axes: ("bytes", "MB/s"),
                is_logarithmic,
                curves: vec![Curve { name: "model".into(), points: vec![(16.0, 2.0), (4_096.0, 300.0)] }],
                marks: vec![(512.0, 122.0)],
            };
            let picture = draw(&plot).unwrap();
            for part in ["<svg", "a title", "bytes", "MB/s", "model", "stated"] {
                assert!(picture.contains(part), "{part} is missing");
            }
        }
        assert_eq!(
            [1_024.0, 2_097_152.0, 16.0, 0.5, 1_000.0].map(quantity),
            ["1K", "2M", "16", "0.5", "1000"]
        );
    }
}
