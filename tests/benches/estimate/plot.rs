//! Predicted beside actual, as a picture: one panel a quantity, both axes logarithmic, with the diagonal and a fifth to both sides.

use std::fmt::Write as _;

/// Width and height of a panel with its margins, in pixels.
const PANEL: (f64, f64) = (460.0, 460.0);
/// Left, top, right and bottom of that.
const MARGIN: (f64, f64, f64, f64) = (64.0, 40.0, 16.0, 52.0);
/// Colours of the parts.
const COLOURS: [&str; 2] = ["#1f6f8b", "#d1603d"];
/// What counts as near.
const NEAR: f64 = 0.2;

/// Points of one part: predicted and actual seconds.
type Part = (String, Vec<(f64, f64)>);

/// The picture.
pub(crate) fn svg(panels: &[(&str, Vec<Part>)]) -> String {
    let (width, height) = (PANEL.0 * panels.len() as f64, PANEL.1);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n"
    );
    for (index, (title, parts)) in panels.iter().enumerate() {
        panel(&mut out, PANEL.0 * index as f64, title, parts);
    }
    out + "</svg>\n"
}

/// From seconds to pixels.
struct Axis {
    from: f64,
    to: f64,
    start: f64,
    end: f64,
}

impl Axis {
    fn at(&self, seconds: f64) -> f64 {
        let share = (seconds.ln() - self.from.ln()) / (self.to.ln() - self.from.ln());
        self.start + share * (self.end - self.start)
    }

    /// 1, 2 and 5 of each power of ten.
    fn ticks(&self) -> Vec<f64> {
        let powers = (-5..4).flat_map(|power| [1.0, 2.0, 5.0].map(|digit| digit * 10_f64.powi(power)));
        powers.filter(|tick| (self.from..=self.to).contains(tick)).collect()
    }
}

fn panel(out: &mut String, left: f64, title: &str, parts: &[Part]) {
    let all = || parts.iter().flat_map(|(_, points)| points).flat_map(|(x, y)| [*x, *y]).filter(|value| *value > 0.0);
    let from = all().fold(f64::INFINITY, f64::min) * 0.8;
    let to = all().fold(0.0, f64::max) * 1.25;
    if !(from.is_finite() && to > from) {
        return;
    }
    let x = Axis { from, to, start: left + MARGIN.0, end: left + PANEL.0 - MARGIN.2 };
    let y = Axis { from, to, start: PANEL.1 - MARGIN.3, end: MARGIN.1 };
    let mut line = |from: (f64, f64), to: (f64, f64), style: &str| {
        let _ = writeln!(out, "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" {style}/>", from.0, from.1, to.0, to.1);
    };
    for tick in x.ticks() {
        line((x.at(tick), y.start), (x.at(tick), y.end), "stroke=\"#eee\"");
        line((x.start, y.at(tick)), (x.end, y.at(tick)), "stroke=\"#eee\"");
    }
    line((x.start, y.start), (x.end, y.start), "stroke=\"#444\"");
    line((x.start, y.start), (x.start, y.end), "stroke=\"#444\"");
    line((x.at(from), y.at(from)), (x.at(to), y.at(to)), "stroke=\"#444\"");
    for factor in [1.0 - NEAR, 1.0 + NEAR] {
        let (low, high) = (from.max(from / factor), to.min(to / factor));
        line((x.at(low), y.at(low * factor)), (x.at(high), y.at(high * factor)), "stroke=\"#999\" stroke-dasharray=\"5 4\"");
    }
    let mut text = |at: (f64, f64), anchor: &str, more: &str, text: &str| {
        let _ = writeln!(out, "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\" {more}>{text}</text>", at.0, at.1);
    };
    for tick in x.ticks() {
        text((x.at(tick), y.start + 16.0), "middle", "fill=\"#444\"", &shown(tick));
        text((x.start - 6.0, y.at(tick) + 4.0), "end", "fill=\"#444\"", &shown(tick));
    }
    let middle = (x.start + x.end) / 2.0;
    text((middle, 22.0), "middle", "font-size=\"14\"", title);
    text((middle, PANEL.1 - 14.0), "middle", "", "predicted");
    text((x.start + 6.0, y.end + 12.0), "start", "", "actual");
    for (index, ((name, points), colour)) in parts.iter().zip(COLOURS).enumerate() {
        let near = points.iter().filter(|(predicted, actual)| (actual / predicted - 1.0).abs() <= NEAR).count();
        let legend = format!("{name}: {near} of {} within {:.0} %", points.len(), NEAR * 100.0);
        text((x.end, y.start - 24.0 + 15.0 * index as f64), "end", &format!("fill=\"{colour}\""), &legend);
    }
    for ((_, points), colour) in parts.iter().zip(COLOURS) {
        for (predicted, actual) in points {
            let (cx, cy) = (x.at(*predicted), y.at(*actual));
            let _ = writeln!(out, "<circle cx=\"{cx:.1}\" cy=\"{cy:.1}\" r=\"3.5\" fill=\"{colour}\" fill-opacity=\"0.65\"/>");
        }
    }
}

fn shown(seconds: f64) -> String {
    if seconds >= 1.0 { format!("{seconds:.0} s") } else { format!("{:.0} ms", (seconds * 1e3).max(1.0)) }
}
