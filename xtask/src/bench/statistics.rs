//! Medians, spreads, and whether a difference is more than noise.

/// A difference is beyond noise if chance alone brings one as clear in fewer cases than this.
const CHANCE: f64 = 0.01;
/// A smaller change of the median is not worth a mark, however certain.
const LEAST: f64 = 0.02;

/// The middle value; of an even number of them the mean of the middle two. `None` without values.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        even if even % 2 == 0 => Some(f64::midpoint(sorted[middle - 1], sorted[middle])),
        _ => Some(sorted[middle]),
    }
}

/// From the least to the greatest value, as a part of the median.
pub fn spread(values: &[f64]) -> Option<f64> {
    let least = values.iter().copied().min_by(f64::total_cmp)?;
    let greatest = values.iter().copied().max_by(f64::total_cmp)?;
    let median = median(values)?;
    (median > 0.0).then(|| (greatest - least) / median)
}

/// How two sets of runs compare.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Verdict {
    /// The first set's median by the second's.
    pub ratio: f64,
    /// `None` if there are too few runs to say.
    pub beyond_noise: Option<bool>,
}

/// Compares runs of something `new` with those of something `old`, by the rank test of Mann and
/// Whitney, which asks only that the runs are independent: how often would runs that differ by
/// chance be as well separated as these? Five runs on each side are beyond noise only if all of
/// one side are above all of the other.
pub fn judge(new: &[f64], old: &[f64]) -> Option<Verdict> {
    let (middle_new, middle_old) = (median(new)?, median(old)?);
    if middle_old <= 0.0 {
        return None;
    }
    let ratio = middle_new / middle_old;
    let (a, b) = (new.len(), old.len());
    let beyond_noise = (chance(a, b, 0.0) < CHANCE)
        .then(|| (ratio - 1.0).abs() >= LEAST && chance(a, b, rank_sum(new, old)) < CHANCE);
    Some(Verdict { ratio, beyond_noise })
}

/// Of all pairs, those in which the order is the rarer one; equals count half.
fn rank_sum(new: &[f64], old: &[f64]) -> f64 {
    let mut above: f64 = 0.0;
    for a in new {
        for b in old {
            above += match a.total_cmp(b) {
                std::cmp::Ordering::Greater => 1.0,
                std::cmp::Ordering::Equal => 0.5,
                std::cmp::Ordering::Less => 0.0,
            };
        }
    }
    above.min((new.len() * old.len()) as f64 - above)
}

/// The probability, if all orders are equally likely, that at most so many pairs are in the rarer
/// order, whichever that is.
fn chance(a: usize, b: usize, pairs: f64) -> f64 {
    let orders = orders(a, b);
    let all: f64 = orders.iter().sum();
    let rare: f64 = orders.iter().take(pairs.ceil() as usize + 1).sum();
    (2.0 * rare / all).min(1.0)
}

/// How many orders of `a` and `b` things have so many pairs with the one above the other: by that
/// number.
fn orders(a: usize, b: usize) -> Vec<f64> {
    let most = a * b;
    // counts[i]: of i of the one kind and as many of the other as were added so far. The topmost
    // is either of the one kind, and above all of the other, or of the other.
    let mut counts = vec![vec![0.0; most + 1]; a + 1];
    for row in &mut counts {
        row[0] = 1.0;
    }
    for added in 1..=b {
        for i in 1..=a {
            for pairs in added..=most {
                let one_less = counts[i - 1][pairs - added];
                counts[i][pairs] += one_less;
            }
        }
    }
    counts.pop().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[9.0, 1.0, 3.0]), Some(3.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 9.0]), Some(3.0));
    }

    #[test]
    fn the_spread_is_a_part_of_the_median() {
        assert_eq!(spread(&[90.0, 100.0, 120.0]), Some(0.3));
        assert_eq!(spread(&[5.0]), Some(0.0));
        assert_eq!(spread(&[]), None);
        assert_eq!(spread(&[0.0, 0.0]), None);
    }

    #[test]
    fn orders_are_counted_as_in_the_tables_of_the_test() {
        assert_eq!(orders(2, 2), [1.0, 1.0, 2.0, 1.0, 1.0]);
        assert_eq!(orders(5, 5).iter().sum::<f64>(), 252.0);
        assert_eq!(orders(3, 4).iter().sum::<f64>(), 35.0);
        assert_eq!(orders(3, 4), orders(4, 3));
        // Two-sided 1 % of 8 against 8 is at 7 pairs.
        assert!(chance(8, 8, 7.0) < 0.01 && chance(8, 8, 8.0) > 0.01);
    }

    #[test]
    fn runs_that_are_apart_are_beyond_noise_and_mixed_ones_are_not() {
        let old = [100.0, 103.0, 98.0, 101.0, 99.0];
        let apart = judge(&[90.0, 93.0, 88.0, 92.0, 91.0], &old).unwrap();
        assert_eq!(apart.beyond_noise, Some(true));
        assert!((apart.ratio - 0.91).abs() < 1e-9);
        let mixed = judge(&[90.0, 99.5, 88.0, 92.0, 91.0], &old).unwrap();
        assert_eq!(mixed.beyond_noise, Some(false));
        let better = judge(&[190.0, 193.0, 188.0, 192.0, 191.0], &old).unwrap();
        assert_eq!(better.beyond_noise, Some(true));
    }

    #[test]
    fn a_certain_but_tiny_change_is_not_marked() {
        let old = [100.0, 100.1, 100.2, 100.3, 100.4];
        let new = [101.0, 101.1, 101.2, 101.3, 101.4];
        assert_eq!(judge(&new, &old).unwrap().beyond_noise, Some(false));
    }

    #[test]
    fn few_runs_say_nothing_and_equal_ones_no_difference() {
        assert_eq!(judge(&[1.0, 2.0, 3.0, 4.0], &[9.0; 4]).unwrap().beyond_noise, None);
        assert_eq!(judge(&[9.0; 5], &[9.0; 5]).unwrap().beyond_noise, Some(false));
        assert_eq!(judge(&[], &[1.0]), None);
        assert_eq!(judge(&[1.0], &[0.0]), None);
    }
}
