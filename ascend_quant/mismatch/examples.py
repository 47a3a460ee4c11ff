"""The built-in prompts: mathematics and general questions, in English and in Chinese."""

EXAMPLES = (
    "Natalia sold 48 clips in April, and half as many in May. How many clips did she sell in the two months?",
    "小明有 24 个苹果,他把其中的三分之一送给了朋友,又买了 5 个。他现在有多少个苹果?请写出推理过程。",
    "Let f(x) = x^3 - 6x^2 + 9x + 1. Find all local extrema of f, step by step.",
    "一列火车以每小时 80 公里的速度行驶 2.5 小时,然后以每小时 100 公里的速度行驶 1.5 小时,求平均速度。",
    "Prove that the sum of the first n odd numbers is n^2.",
    "解方程组 2x + 3y = 12, x - y = 1,并检验结果。",
    "How many integers between 1 and 1000 are divisible by 3 or by 5, but not by both?",
    "一个袋子里有 4 个红球和 6 个白球,不放回地取出 2 个,求两个球颜色相同的概率。",
    "Write a Python function that returns the k-th smallest element of an unsorted list in O(n) expected time.",
    "用 Python 写一个函数,判断一个字符串是不是回文,并给出 3 个测试用例。",
    "Explain in 3 paragraphs why the sky is blue and why sunsets are red.",
    "请用 200 字左右介绍一下唐代诗人李白的生平和代表作。",
    "Write a short letter to a landlord, asking for the heating to be repaired before December 1.",
    "请列出 5 条提高睡眠质量的建议,并简要说明每条的原因。",
    "Compare TCP and UDP in 4 points, and give an application for which each is the better choice.",
    "把下面的句子翻译成英文:2008 年夏天,北京举办了第 29 届奥运会。",
)
