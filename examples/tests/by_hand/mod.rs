//! Matrices written by hand.

/// Four rows in a Harwell-Boeing file.
pub const SMALL: &str = "\
Four rows, by hand                                                      FOUR
             7             1             1             3             2
RUA                        4             4             9             0
(16I5)          (10I8)          (1P,4E20.13)        (3E25.16)
F                          1             0
    1    3    6    8   10
       1       3       1       2       4       3       4       2       4
 2.0000000000000E+00-1.0000000000000E+00 1.5000000000000D+00 4.0000000000000E+00
-2.5000000000000E-01 3.0000000000000E+00 1.0000000000000+000-5.0000000000000E-01
                2.25
    1.0
    2.0
";
