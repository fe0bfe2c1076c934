// Times in the reader's zone, and tables that are printed whole. Without this script all times are in UTC.
"use strict";
(() => {
  document.documentElement.classList.add("js");
  const two = (n) => String(n).padStart(2, "0");
  for (const time of document.querySelectorAll("time[datetime]")) {
    const at = new Date(time.dateTime);
    if (Number.isNaN(at.getTime())) continue;
    const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
    const clock = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
    time.textContent = time.dataset.date === "1" ? `${day} ${clock}` : clock;
  }
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone || "your zone";
  document.getElementById("zone").textContent = `Times are in ${zone}.`;

  let closed = [];
  window.addEventListener("beforeprint", () => {
    closed = [...document.querySelectorAll("details:not([open])")];
    for (const each of closed) each.open = true;
  });
  window.addEventListener("afterprint", () => {
    for (const each of closed) each.open = false;
  });
})();
