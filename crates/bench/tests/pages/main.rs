//! The pages of `bench figures` and `bench compare` in a real browser: as wide as the window, light where it
//! is light and dark where it is dark, every letter to be read, no picture missing.
//!
//! Without Chromium nothing is looked at. Screenshots stay in `tmp/pages` of the target folder, for people.
#![forbid(unsafe_code)]

mod browser;
mod stored;

use browser::{Browser, Scheme};
use everdram_bench::report;

/// Widths of a window on a desk and of a telephone, in pixels.
const WIDTHS: [u32; 2] = [1280, 390];

/// The browser; none prints that nothing is looked at.
fn browser() -> Option<Browser> {
    let browser = Browser::find();
    if browser.is_none() {
        println!("skipped: no Chromium");
    }
    browser
}

/// Looks at a page with so many pictures in all windows.
fn assert_fine(name: &str, page: &str, pictures: usize) {
    let Some(browser) = browser() else {
        return;
    };
    for width in WIDTHS {
        for scheme in Scheme::ALL {
            let seen = browser.look(name, page, width, scheme);
            let window = format!("{name}, {width} pixels, {scheme:?}");
            assert_eq!(seen.findings, [""; 0], "{window}");
            assert_eq!((seen.width, seen.scheme), (width, scheme), "{window}");
            assert_eq!(seen.pictures, pictures, "{window}");
            assert!(seen.texts > 500, "{window}: {} texts", seen.texts);
        }
    }
}

#[test]
fn the_page_of_all_figures() {
    let chapters = stored::chapters();
    let pictures = chapters.iter().filter(|one| one.measured.is_ok()).count();
    let page = report::figures::html(&chapters, "everdram bench figures --quick --seed 42");
    assert_fine("figures", &page, pictures);
}

#[test]
fn the_page_of_a_comparison() {
    let page = report::html(&stored::comparison());
    let pictures = page.matches("<figcaption>").count();
    assert!(pictures > 20, "{pictures}");
    assert_fine("compare", &page, pictures);
}

/// A test that looks and sees nothing would pass, too.
#[test]
fn what_is_wrong_with_a_page_is_seen() {
    let Some(browser) = browser() else {
        return;
    };
    let picture = |width: u32, inside: &str| {
        format!(
            "<figure><svg width=\"{width}\" height=\"200\" viewBox=\"0 0 400 200\" style=\"min-width: 0\">\
             <rect width=\"400\" height=\"200\" fill=\"#FFFFFF\"/>{inside}</svg></figure>"
        )
    };
    let text = |x: u32, fill: &str, what: &str| {
        format!("<text x=\"{x}\" y=\"90\" font-size=\"12\" fill=\"{fill}\">{what}</text>")
    };
    let line =
        |stroke: &str| format!("<path d=\"M0 0L99 99\" stroke=\"{stroke}\" stroke-width=\"2\"/>");
    let (ink, blue) = ("#222222", line("#0072B2"));
    let wrong = [
        (
            "<div style=\"width: 2000px\">wide</div>".to_owned(),
            "the page is 20",
        ),
        (
            "<div style=\"margin-left: -99px\">left</div>".into(),
            "it goes from -",
        ),
        (
            "<p style=\"color: #333; background: #111\">dim</p>".into(),
            "contrast of 1.49",
        ),
        (
            "<figure>nothing</figure>".into(),
            "a figure without a picture",
        ),
        (picture(40, &blue), "a picture of 40"),
        (picture(400, ""), "a picture without a curve"),
        (
            picture(400, &line("#1C2127")),
            "a line with a contrast of 1.01",
        ),
        (
            picture(400, &format!("{blue}{}", text(380, ink, "an edge"))),
            "a text that the picture's edge cuts",
        ),
        (
            picture(400, &format!("{blue}{}", text(50, "#333333", "dim"))),
            "contrast of 1.30",
        ),
        (
            picture(
                400,
                &format!("{blue}{}{}", text(50, ink, "one"), text(55, ink, "other")),
            ),
            "a text over <text class=\"\"> one",
        ),
        (
            picture(200, &format!("{blue}{}", text(50, ink, "small"))),
            "letters of 6.0 pixels",
        ),
        (
            picture(
                400,
                &format!(
                    "<rect width=\"400\" height=\"200\" fill=\"#DDDDDD\"/>{blue}{}",
                    text(9, ink, "light")
                ),
            ),
            "contrast of 1.11",
        ),
        (
            picture(400, &blue).replace("#FFFFFF", "#EEEEEE"),
            "the picture has the ground of the other scheme",
        ),
        (
            "<img src=\"elsewhere.png\" alt=\"\"/>".into(),
            "elsewhere.png",
        ),
        (
            "<script>nowhere.at.all()</script>".into(),
            "Uncaught ReferenceError",
        ),
    ];
    let page = report::html(&stored::comparison());
    let with = |parts: &str| page.replace("</main>", &format!("{parts}</main>"));
    let parts: String = wrong.iter().map(|(part, _)| part.as_str()).collect();
    let seen = browser.look("planted", &with(&parts), 1280, Scheme::Dark);
    for (part, finding) in &wrong {
        let is_found = seen.findings.iter().any(|one| one.contains(finding));
        assert!(is_found, "{part} is not found: {:#?}", seen.findings);
    }
    // Light where it should be dark, and the other way round.
    for (scheme, ground) in [(Scheme::Dark, "white"), (Scheme::Light, "black")] {
        let style = format!("<style>body {{ background: {ground}; }}</style>");
        let seen = browser.look("planted", &with(&style), 390, scheme);
        let finding = "the page has the ground of the other scheme";
        let is_found = seen.findings.iter().any(|one| one.contains(finding));
        assert!(is_found, "{scheme:?}: {:#?}", seen.findings);
    }
}
