import { expect, it } from "vitest";

import { inWords } from "./cron";

it.each([
  ["* * * * *", "Every minute"],
  ["*/15 * * * *", "Every 15 minutes"],
  ["*/15 9-17 * * 1-5", "Every 15 minutes from 09:00 to 17:45 from Monday to Friday"],
  ["*/7 0 * * *", "At the minutes 0, 7, 14, 21, 28, 35, 42, 49, and 56 of the hours 0 every day"],
  ["0 * * * *", "Every hour"],
  ["5 */6 * * *", "Every 6 hours at 5 minutes past"],
  ["30 9-17 * * *", "Every hour from 09:30 to 17:30"],
  ["30 2 * * *", "At 02:30 every day"],
  ["0,30 9,17 * * mon,thu", "At 09:00, 09:30, 17:00, and 17:30 on Mondays and Thursdays"],
  ["0 9 * * 5-7", "At 09:00 on Sundays, Fridays, and Saturdays"],
  ["0 0 1,15 * *", "At 00:00 on the 1st and 15th of the month"],
  ["0 0 29 2 *", "At 00:00 on the 29th of the month in February"],
  ["0 0 13 * 5", "At 00:00 on the 13th of the month, and on Fridays"],
  ["0 0 1-3 * */7", "At 00:00 on the 1st, 2nd, and 3rd of the month if that is a Sunday"],
  ["0 0 22,31 JAN-MAR *", "At 00:00 on the 22nd and 31st of the month in January, February, and March"],
])("%s is said as: %s", (expression, words) => {
  expect(inWords(expression)).toBe(words);
});

it.each(["", "@daily", "* * * *", "60 * * * *", "5-1 * * * *", "*/0 * * * *", "0 0 L * *", "x * * * *", "0 0 0 * *"])("%s is no expression", (expression) => {
  expect(inWords(expression)).toBeUndefined();
});
