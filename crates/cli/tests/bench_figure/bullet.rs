//! Figures of Bullet's paper.

use crate::small::{assert_rates, small};
use everdram_bench::Metric;
use everdram_bench::figure::of_volatile;

#[test]
fn latency_against_throughput() {
    let line = "--threads 1,2 --writes 0,50 --systems volatile,+wrc --rounds 2";
    let (rows, page) = small("bullet-5", &line.split(' ').collect::<Vec<_>>());
    assert_eq!(rows.len(), 2 * 2 * 2);
    for row in &rows {
        assert_rates(row, 2, row.threads);
        assert!(row.get(Metric::CoreRate).median > 0.0);
        for metric in [Metric::GleaningShare, Metric::QueuedShare] {
            assert!((0.0..=1.0).contains(&row.get(metric).max), "{row:?}");
        }
        let has_puts = row.number("writes") > 0.0;
        assert_eq!(row.get(Metric::LogTurns).median > 0.0, has_puts, "{row:?}");
        for metric in [Metric::Rate, Metric::MeanNs] {
            let ratio = of_volatile(&rows, row, metric).unwrap();
            assert!(ratio > 0.0 && (row.subject != "volatile" || ratio == 1.0));
        }
    }
    assert!(page.contains("## Bars") && page.contains("not measured"));
}

#[test]
fn distributions_of_latency() {
    let line = "--threads 2 --systems volatile,+wrc --rounds 2";
    let (rows, _) = small("bullet-6", &line.split(' ').collect::<Vec<_>>());
    let calls: Vec<&str> = rows.iter().map(|row| row.workload.as_str()).collect();
    assert_eq!(calls, ["get", "put", "get", "put"]);
    for row in &rows {
        assert_eq!(row.rounds(Metric::CoreMeanNs).len(), 2);
        assert!(row.cdf.is_sorted() && !row.cdf.is_empty(), "{:?}", row.cdf);
        assert!(row.cdf.iter().all(|(ns, share)| *ns > 0 && *share < 1.0));
        let of = |metric| row.get(metric).median;
        assert!(of(Metric::P50Ns) <= of(Metric::P99Ns) && of(Metric::P999Ns) <= of(Metric::MaxNs));
        assert!(of_volatile(&rows, row, Metric::CoreMeanNs).unwrap() > 0.0);
    }
    for both in rows.chunks(2) {
        let [gets, puts] = [&both[0], &both[1]].map(|row| row.get(Metric::Operations).median);
        assert!(gets > puts, "{gets} {puts}");
    }
}

#[test]
fn phases_of_one_course_of_time() {
    let (rows, _) = small("bullet-7", &["--quick", "--threads", "2"]);
    let writes: Vec<f64> = rows.iter().map(|row| row.number("writes")).collect();
    assert_eq!(writes, [2.0, 15.0, 2.0, 0.0, 2.0, 50.0, 2.0]);
    let seconds = rows.iter().flat_map(|row| row.rounds(Metric::Second));
    assert!(seconds.is_sorted_by(|one, next| one < next));
    for row in &rows {
        let moments = row.rounds(Metric::Second).len();
        for metric in [
            Metric::Rate,
            Metric::CoreRate,
            Metric::Gleaners,
            Metric::GleaningShare,
        ] {
            assert_eq!(row.rounds(metric).len(), moments, "{metric}");
        }
        assert!(row.get(Metric::Gleaners).max <= 2.0 && row.get(Metric::Rate).min >= 0.0);
        assert!((0.0..=1.0).contains(&row.get(Metric::GleaningShare).max));
    }
    assert!(rows.iter().any(|row| row.get(Metric::Rate).max > 0.0));
}

#[test]
fn sizes_of_logs() {
    let line = "--threads 2 --writes 2,50 --log-bytes 64KiB,256KiB --rounds 1";
    let (rows, _) = small("bullet-8", &line.split(' ').collect::<Vec<_>>());
    let loads: Vec<(f64, f64)> = rows
        .iter()
        .map(|row| (row.number("log_bytes") / 1024.0, row.number("writes")))
        .collect();
    assert_eq!(
        loads,
        [(64.0, 2.0), (64.0, 50.0), (256.0, 2.0), (256.0, 50.0)]
    );
    rows.iter().for_each(|row| assert_rates(row, 1, 2));
}

#[test]
fn independent_clients() {
    let line = "--threads 2 --clients 1,3 --writes 15 --systems volatile,+wrc --rounds 1";
    let (rows, _) = small("bullet-9", &line.split(' ').collect::<Vec<_>>());
    let clients: Vec<f64> = rows.iter().map(|row| row.number("clients")).collect();
    assert_eq!(clients, [1.0, 3.0, 1.0, 3.0]);
    for row in &rows {
        assert_rates(row, 1, row.number("clients") as usize);
        assert!(row.spread(Metric::CoreRate).is_none());
    }
}
