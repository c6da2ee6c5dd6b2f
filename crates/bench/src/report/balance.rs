//! Whether every tag of a page is closed where it should be; enough of a parser for pages that are written as
//! XML.

/// Asserts that tags are balanced and that no bare `&` or `<` is left.
///
/// # Panics
/// If they are not.
pub(crate) fn assert_balanced(page: &str) {
    let mut open: Vec<&str> = Vec::new();
    let style_from = page.find("<style>").expect("a style sheet") + "<style>".len();
    let style_to = page.find("</style>").expect("its end");
    let page = format!("{}{}", &page[..style_from], &page[style_to..]);
    let mut rest = page.as_str();
    while let Some(at) = rest.find('<') {
        assert_text(&rest[..at]);
        let end = rest[at..].find('>').expect("a tag ends") + at;
        let tag = &rest[at + 1..end];
        assert!(!tag.contains('<'), "a tag within a tag: {tag}");
        assert!(tag.matches('"').count().is_multiple_of(2), "quotes: {tag}");
        let name = tag.split([' ', '/']).find(|part| !part.is_empty());
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "closed");
        } else if !tag.ends_with('/') && !tag.starts_with('!') {
            open.push(name.expect("a name"));
        }
        rest = &rest[end + 1..];
    }
    assert_text(rest);
    assert_eq!(open, [""; 0], "left open");
}

fn assert_text(text: &str) {
    assert!(!text.contains('>'), "bare >: {text}");
    for part in text.split('&').skip(1) {
        let name = part.split(';').next().unwrap_or_default();
        assert!(
            ["amp", "lt", "gt", "quot", "#39", "apos"].contains(&name),
            "bare &: {text}"
        );
    }
}

#[test]
fn what_is_not_closed_is_found() {
    let page = |body: &str| format!("<html><style>a > b</style>{body}</html>");
    assert_balanced(&page("<p>x &amp; <br/></p>"));
    for body in [
        "<p>",
        "</p>",
        "<p><b></p></b>",
        "a & b",
        "a > b",
        "<p a=\"></p>",
    ] {
        let page = page(body);
        assert!(
            std::panic::catch_unwind(|| assert_balanced(&page)).is_err(),
            "{body}"
        );
    }
}
